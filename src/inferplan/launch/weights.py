"""Which checkpoint a server is told to load, so that its weights are in the format that was planned. Knows no flag and no byte.

The catalog's own Hub ids and listed checkpoints are all that is known here; nothing is guessed from how people name their uploads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from inferplan.errors import InferplanError, SpecError, Unsupported, shown
from inferplan.launch.table import Options
from inferplan.quantization.support import support
from inferplan.specs.model import Model
from inferplan.specs.precision import Precision

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
LONGEST_NAME = 4096  # of a path, as Linux has it
MAKERS = frozenset({"amd", "intel", "nvidia"})
_CONFIG_OF = re.compile(r"config\.json of (\S+/[^\s,;]+)")
_OF_A_FORMAT = re.compile(
    r"bf16|[wa]?\d+a\d+(?:kv\d+)?|w\d+|(?:int|u?int|fp|nvfp|mxfp|nf|mx)\d+|awq|gptq|bnb|bitsandbytes|\d+bit|g\d+|gs\d+|kv|"
    r"dynamic|static|per|pertensor|tensor|block|channel|quantized|unsloth|marlin|sym|hf"
)
_FILES = (".gguf", ".safetensors", ".json", ".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Weights:
    """What a server loads.

    name
        a Hub id, a folder or a GGUF file; `tag` is the type to pick from a repository of GGUF files.
    online
        the format into which the engine quantises while it loads, '' where the checkpoint is in the format already.
    base
        the id of the model in 16 bit, whose tokenizer a benchmark can use, '' where it is not known.
    """

    name: str
    remark: str
    online: str = ""
    tag: str = ""
    base: str = ""

    @property
    def is_file(self) -> bool:
        """Whether this is a file or a folder rather than a Hub id."""
        return self.name.lower().endswith(_FILES) or not HUB_ID.fullmatch(self.name)


def hub_ids(model: Model) -> list[str]:
    """Hub ids of a model's shapes, the one that the shapes were read from first.

    >>> from inferplan.names import model
    >>> hub_ids(model("llama-3.1-70b"))[0], hub_ids(model("gpt-3-175b"))
    ('meta-llama/Llama-3.1-70B-Instruct', [])
    """
    source = model.sources.get("shapes")
    read = _CONFIG_OF.match(source.title) if source is not None else None
    ids = [name for name in model.aliases if HUB_ID.fullmatch(name)]
    first = [read[1]] if read is not None and read[1] in ids else []
    return list(dict.fromkeys([*first, *ids]))


def weights(
    model: Model, precision: Precision, options: Options, *, asked: str = "", hub_id: str | None = None, checkpoint: str | None = None,
    vendor: str = "",
) -> Weights:  # fmt: skip
    """The checkpoint to load for a precision.

    asked
        the name under which the model was opened: a Hub id or a path among these is the checkpoint meant.
    hub_id
        the Hub id of the model, for one that the catalog has none for, or in place of the catalog's first.
    checkpoint
        a checkpoint that is in the planned format already.
    vendor
        maker of the part: checkpoints that another maker has prepared for its own parts come last.

    Raises SpecError for a name that cannot be one, or that the catalog lists with another format; Unsupported where a checkpoint must
    be named.
    """
    for field, text in (("hub_id", hub_id), ("checkpoint", checkpoint)):
        _check_name(field, text)
    if hub_id is not None and not HUB_ID.fullmatch(hub_id):
        raise SpecError("must be owner/name, as on the Hub", field="hub_id", value=hub_id)
    if options.name == "llama.cpp":
        return _gguf(model, precision, options, asked, checkpoint)
    if checkpoint is not None:
        return _given(model, precision, checkpoint)
    base, how = _base(model, asked, hub_id)
    if _holds(_stored(model, base), precision):
        return Weights(base, f"weights: {base}, {how}, as they are stored", base=base)
    return _quantised(model, precision, options, base, how, vendor)


def _check_name(field: str, text: str | None) -> None:
    if text is None:
        return
    if not text.strip() or text.startswith("-") or not text.isprintable() or len(text) > LONGEST_NAME:
        raise SpecError("must be the name of a checkpoint: a Hub id or a path", field=field, value=text)


def _base(model: Model, asked: str, hub_id: str | None) -> tuple[str, str]:
    """The checkpoint of the model itself, and how it was found."""
    if hub_id is not None:
        return hub_id, "as given"
    if asked.lower().endswith(("/config.json", ".safetensors")):
        return asked.rpartition("/")[0] or ".", "the folder of the file"
    if asked.startswith(("/", "./", "../", "~")) and not asked.lower().endswith(_FILES):
        return asked, "as given"
    if HUB_ID.fullmatch(asked):
        spelt = {name.lower(): name for name in (*model.aliases, *model.checkpoints)}
        return spelt.get(asked.lower(), asked), "as asked for"
    known = hub_ids(model)
    if not known:
        raise Unsupported(f"{model.title} has no Hub id in the catalog: name the one to load (--hub-id OWNER/NAME)")
    if (own := _of_that_name(known, asked)) is not None:
        return own, f"the Hub id that the catalog lists under '{asked}'"
    others = len(known) - 1
    more = f" of {others + 1} with these shapes (--hub-id names another)" if others else ""
    return known[0], f"the first Hub id that the catalog lists{more}"


def _of_that_name(known: list[str], asked: str) -> str | None:
    """The Hub id that an alias of its own means, where the first of those with the same shapes is another model.

    >>> _of_that_name(["meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"], "llama-3.3-70b")
    'meta-llama/Llama-3.3-70B-Instruct'
    >>> _of_that_name(["meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.1-70B"], "llama-3.1-70b") is None
    True
    """
    name = asked.lower().replace(":", "-")
    own = [each for each in known if f"{_stem(each)}-".startswith(f"{name}-")]
    return own[0] if name and own and known[0] not in own else None


def _stored(model: Model, name: str) -> str:
    """The precision that a checkpoint is stored in, as the catalog knows it."""
    listed = {key.lower(): value for key, value in model.checkpoints.items()}
    return listed.get(name.lower()) or model.precision or model.dtype


@cache
def _named(text: str) -> Precision | None:
    try:
        return Precision.named(text)
    except InferplanError:
        return None


def _holds(stored: str, precision: Precision) -> bool:
    """Whether weights stored so are those of a precision; plain checkpoints are loaded in any 16-bit or wider type."""
    found = _named(stored)
    if found is None:
        return False
    if _plain(found) and _plain(precision):
        return True
    body = (found.weights, _narrow(found), found.mix)
    return body == (precision.weights, _narrow(precision), precision.mix)


def _plain(precision: Precision) -> bool:
    return precision.mix is None and not precision.weights.quantised and not _narrow(precision)


def _narrow(precision: Precision) -> tuple[tuple[str, str], ...]:
    """Parts in another quantised format than the body, or in 16 bit beside a quantised body where others are not by rule."""
    return tuple(sorted((part, f.name) for part, f in precision.overrides if f.quantised))


def _given(model: Model, precision: Precision, checkpoint: str) -> Weights:
    """A checkpoint that the user names, checked where the catalog lists it."""
    listed = {key.lower(): value for key, value in model.checkpoints.items()}
    stored = listed.get(checkpoint.lower())
    if stored is not None and not _holds(stored, precision):
        raise SpecError(f"is listed with weights in {stored}, not in {precision.name}", field="checkpoint", value=checkpoint)
    known = f"which the catalog lists as {stored}" if stored is not None else f"as given: it must hold {precision.title}"
    if stored is not None and not _same_cache(stored, precision):
        known += f"; it brings scales for another cache than {precision.kv.name}, which some releases then use"
    return Weights(checkpoint, f"weights: {checkpoint}, {known}", base=next(iter(hub_ids(model)), ""))


def _quantised(model: Model, precision: Precision, options: Options, base: str, how: str, vendor: str) -> Weights:
    """A listed checkpoint of this very model in the format, else the model quantised while it loads."""
    fitting = [n for n, text in model.checkpoints.items() if _holds(text, precision) and _same_cache(text, precision)]
    listed = [n for n in fitting if HUB_ID.fullmatch(n)]
    own = [name for name in listed if _same_model(base, name)]
    if own:
        found = min(own, key=lambda name: (name.partition("/")[0].lower() in MAKERS - {vendor.lower()}, len(name)))
        return Weights(found, f"weights: {found}, which the catalog lists as {precision.name} weights of {base}", base=base)
    online = precision.weights.name if not _narrow(precision) and precision.weights.quantised else ""
    plain = _named(_stored(model, base))
    if online and plain is not None and _plain(plain) and options.find("serve", "online", online):
        when = f"quantised to {online} by {options.title} while it loads: the 16-bit files are read at every start"
        remark = f"weights: {base}, {how}, {when}"
        return Weights(base, remark, online=online, base=base)
    near = f"; with these shapes the catalog lists {', '.join(listed[:3])}" if listed else ""
    raise Unsupported(
        f"{options.said} does not quantise {base} to {precision.name} while it loads: name a checkpoint in that format "
        f"(--checkpoint OWNER/NAME or a path){near}"
    )


def _same_cache(stored: str, precision: Precision) -> bool:
    """Whether a checkpoint with scales for a narrow cache is meant for the cache that was planned."""
    found = _named(stored)
    return found is not None and (not found.kv.quantised or found.kv == precision.kv)


def _same_model(base: str, name: str) -> bool:
    """Whether a checkpoint's name is that of a model with nothing but words of formats beside it.

    >>> _same_model("meta-llama/Llama-2-70b-hf", "TheBloke/Llama-2-70B-AWQ"), _same_model("a/DeepSeek-V3", "b/DeepSeek-V3-0324-BF16")
    (True, False)
    """
    before, stem, after = _stem(name).partition(_stem(base))
    return bool(stem) and not before and all(_OF_A_FORMAT.fullmatch(word) for word in re.split(r"[-_.]+", after) if word)


def _stem(name: str) -> str:
    """What a repository's name says of the model, without owner, `meta-` and `-hf`."""
    return name.rpartition("/")[2].lower().removeprefix("meta-").removesuffix("-hf")


def _gguf(model: Model, precision: Precision, options: Options, asked: str, checkpoint: str | None) -> Weights:
    """A GGUF file, or a repository of them with the type to pick."""
    base = next(iter(hub_ids(model)), "")
    named = checkpoint or (asked if asked.lower().endswith(".gguf") else None)
    tag = precision.mix or precision.weights.name
    if named is None:
        takes = ", ".join(row.format for row in support(options.name) if row.use == "weights")
        raise Unsupported(
            f"{options.title} loads GGUF files ({takes}), of which the catalog lists none: name one in {tag} "
            f"(--checkpoint FILE.gguf or OWNER/NAME-GGUF)"
        )
    if named.lower().endswith(".gguf"):
        return Weights(named, f"weights: {shown(named)}, as given: it must hold {precision.title}", base=base)
    if not HUB_ID.fullmatch(named):
        raise SpecError("must be a .gguf file or a repository of such files, owner/name", field="checkpoint", value=named)
    return Weights(named, f"weights: the {tag.upper()} file of {named}, as given", tag=tag.upper(), base=base)
