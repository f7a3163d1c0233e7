"""A planned deployment as Kubernetes objects: a Deployment or, over nodes, a LeaderWorkerSet, and a Service. Knows no screen.

Kubernetes expands `$(NAME)` in words of a container's command; what is not a variable of ours is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from inferplan.errors import SpecError, Unsupported
from inferplan.launch.command import CONFIG, Command
from inferplan.launch.engines import LEADER, RANK
from inferplan.launch.table import Variable, release_key
from inferplan.specs.hardware import Accelerator

Object = dict[str, Any]
RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
LONGEST_NAME = 50  # of 63 that a DNS label may have: pods of a set append their numbers
SHARED_MEMORY = "16Gi"  # a limit of what ranks exchange through /dev/shm; nothing of it is taken beforehand
DOWNLOADS = "/models"  # a folder of ours for downloads of the Hub, which engines are told of by variables that they document:
DOWNLOADS_IN = "HF_HOME"  # https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
DOWNLOADS_IN_OWN = {
    "tgi": "HUGGINGFACE_HUB_CACHE",  # docs/source/reference/launcher.md, --huggingface-hub-cache
    "llama.cpp": "LLAMA_CACHE",  # https://github.com/ggml-org/llama.cpp/pull/7826
}
OWN_PROGRAM = ("tgi", "llama.cpp")  # engines whose images start the program themselves, by a path of their own, and take options alone
CONFIG_FOLDER = "/etc/inferplan"
PROBE_S, START_S = 10, 3600  # between probes; and as long as loading the weights, from the Hub at first, may take
IN_PLACE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}  # devices for a pod more are seldom free
SET = "leaderworkerset.sigs.k8s.io"


def dns_name(text: str) -> str:
    """A text as a DNS label, as Kubernetes asks of names.

    >>> dns_name("meta-llama/Llama-3.1_70B-Instruct"), dns_name("../$(x)")
    ('llama-3-1-70b-instruct', 'x')
    """
    plain = re.sub(r"[^a-z0-9]+", "-", text.rpartition("/")[2].lower()).strip("-")
    return plain[:LONGEST_NAME].strip("-") or "server"


def launch_manifest(
    command: Command, *, name: str | None = None, replicas: int = 1, image: str | None = None, secret: str = "hub-token",
    claim: str | None = None,
) -> list[Object]:  # fmt: skip
    """The objects that run a command: a ConfigMap where it reads a file, a Deployment or LeaderWorkerSet, and a Service.

    name
        of all objects; unsaid the model's, as a DNS label.
    replicas
        copies of the whole deployment, behind one Service.
    image
        container image; unsaid the release's own where one is known.
    secret
        Secret whose key `token` is the Hub token; the pod starts without it where there is none.
    claim
        PersistentVolumeClaim that holds the weights' folder, or that keeps downloads of the Hub.

    Raises SpecError for a name that is none, Unsupported where a part has no resource name or an image must be named.

    >>> from inferplan.deployment import estimate
    >>> from inferplan.launch.command import launch_command
    >>> from inferplan.names import hardware, model, precision
    >>> found = launch_command(estimate(model("llama-3.1-8b"), hardware("h100"), precision("bf16"), version="0.11.0"))
    >>> [o["kind"] for o in launch_manifest(found, replicas=2)]
    ['Deployment', 'Service']
    """
    for field, text in (("name", name), ("secret", secret), ("claim", claim)):
        if text is not None and (not LABEL.fullmatch(text) or len(text) > LONGEST_NAME):
            rule = f"must be a DNS label of at most {LONGEST_NAME} characters: small letters, digits and hyphens"
            raise SpecError(rule, field=field, value=text)
    if not 1 <= replicas <= 10_000:
        raise SpecError("must lie between 1 and 10,000", field="replicas", value=replicas)
    several = command.plan.nodes.count > 1
    if several and not command.worker and not any(command.join):
        raise Unsupported(f"{command.plan.options.title} joins nodes through MPI, which a LeaderWorkerSet does not start: use --as shell")
    called = name or dns_name(command.plan.weights.base or command.plan.weights.name)
    pods = _Pods(command, called, image or _image(command), secret, claim)
    workload = pods.leader_worker_set(replicas) if several else pods.deployment(replicas)
    files = [_config_map(command, called)] if command.files else []
    return [*files, workload, pods.service()]


def manifest_text(objects: Sequence[Object]) -> str:
    """The objects as YAML documents."""
    import yaml

    class Plain(yaml.SafeDumper):
        """Safe YAML without references, and with scripts line by line."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def written(dumper: Plain, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Plain.add_representer(str, written)
    found: str = yaml.dump_all(objects, Dumper=Plain, sort_keys=False, width=4096, explicit_start=True)
    return found


def escaped_word(word: str) -> str:
    """A word in which Kubernetes expands nothing but a variable of ours.

    >>> escaped_word("a$(HOME)b"), escaped_word(Variable("NODE_RANK"))
    ('a$$(HOME)b', '$(NODE_RANK)')
    """
    return str(word) if isinstance(word, Variable) else word.replace("$(", "$$(")


def _image(command: Command) -> str:
    """The image of the release, from the table."""
    plan, vendor = command.plan, command.plan.e.hardware.vendor
    row = plan.options.find("image", vendor.lower())
    if row is None or ("{}" in row.value and not plan.options.release):
        raise Unsupported(f"no image of {plan.options.said} for parts of {vendor} is known: name one (--image)")
    return row.value.replace("{}", ".".join(map(str, (*release_key(plan.options.release), 0, 0)[:3])))


def resource(hardware: Accelerator) -> str:
    """The name under which Kubernetes counts a part; raises Unsupported where none is known."""
    found = RESOURCES.get(hardware.vendor.lower())
    if found is None or hardware.is_cpu:
        raise Unsupported(f"no Kubernetes resource of {hardware.title} is known; they are of parts of NVIDIA and AMD")
    return found


def _config_map(command: Command, name: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"app": name}}, "data": dict(command.files)}


class _Pods:
    """Pods of one command, and the objects around them."""

    def __init__(self, command: Command, name: str, image: str, secret: str, claim: str | None) -> None:
        self.command, self.name, self.image, self.secret, self.claim = command, name, image, secret, claim
        self.plan = command.plan
        self.labels = {"app": name}
        self.folder = self._folder()

    def _folder(self) -> str:
        """Where the claim is mounted: the folder of local weights, else that of downloads."""
        weights = self.plan.weights
        if not weights.is_file:
            return DOWNLOADS
        if self.claim is None or not weights.name.startswith("/"):
            raise Unsupported(f"{weights.name} is no Hub id: a pod needs its absolute path and the claim that holds it (--claim)")
        return weights.name.rpartition("/")[0] if weights.name.lower().endswith(".gguf") else weights.name

    def deployment(self, replicas: int) -> Object:
        """A Deployment of pods with all devices of one node."""
        return {
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": self.name, "labels": self.labels},
            "spec": {
                "replicas": replicas, "selector": {"matchLabels": self.labels}, "strategy": IN_PLACE,
                "template": {"metadata": {"labels": self.labels}, "spec": self._pod(self._words(first=True), serves=True)},
            },
        }  # fmt: skip

    def leader_worker_set(self, replicas: int) -> Object:
        """A LeaderWorkerSet: groups of pods that start and fail together, one pod per node."""
        first = {**self.labels, "role": "leader"}
        leader = {"metadata": {"labels": first}, "spec": self._pod(self._words(first=True), serves=True)}
        worker = {"metadata": {"labels": self.labels}, "spec": self._pod(self._words(first=False), serves=False)}
        return {
            "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": self.name, "labels": self.labels},
            "spec": {
                "replicas": replicas,
                "leaderWorkerTemplate": {
                    "size": self.plan.nodes.count, "restartPolicy": "RecreateGroupOnPodRestart", "leaderTemplate": leader,
                    "workerTemplate": worker,
                },
            },
        }  # fmt: skip

    def service(self) -> Object:
        """The address of all replicas: of leaders, where each has several pods."""
        several = self.plan.nodes.count > 1
        selector = {f"{SET}/name": self.name, "role": "leader"} if several else self.labels
        ports = [{"name": "http", "port": self.plan.port, "targetPort": "http", "protocol": "TCP"}]
        spec = {"type": "ClusterIP", "selector": selector, "ports": ports}
        return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": self.name, "labels": self.labels}, "spec": spec}

    def _words(self, *, first: bool) -> dict[str, list[str]]:
        """The container's command: words as they are, or a shell where nodes are joined before or a number is worked out."""
        c = self.command
        words = c.argv if first else c.worker
        placed = [f"{CONFIG_FOLDER}/{w}" if w == CONFIG and c.files else w for w in words]
        if any(c.join) or any(isinstance(w, Variable) and w.times != 1 for w in placed):
            script = c.script if first else c.worker_script
            return {"command": ["/bin/sh", "-ec", escaped_word(script)]}
        program = len(self.plan.options.program("serve"))
        if self.plan.options.name in OWN_PROGRAM:
            return {"args": [escaped_word(w) for w in placed[program:]]}
        return {"command": [escaped_word(w) for w in placed[:program]], "args": [escaped_word(w) for w in placed[program:]]}

    def _pod(self, words: dict[str, list[str]], *, serves: bool) -> Object:
        devices = {resource(self.plan.e.hardware): self.plan.nodes.devices}
        container: Object = {"name": "server", "image": self.image, **words, "env": self._env()}
        if serves:
            container |= {"ports": [{"name": "http", "containerPort": self.plan.port}], **self._probes()}
        container |= {"resources": {"limits": devices, "requests": devices}, "volumeMounts": self._mounts()}
        return {"containers": [container], "volumes": self._volumes()}

    def _env(self) -> list[Object]:
        """The Hub token, where downloads go, and what the nodes know of each other."""
        token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": self.secret, "key": "token", "optional": True}}}
        found: list[Object] = [token]
        if not self.plan.weights.is_file:
            found.append({"name": DOWNLOADS_IN_OWN.get(self.plan.options.name, DOWNLOADS_IN), "value": DOWNLOADS})
        names = {name for name, _ in self.command.env}
        if LEADER in names:
            found.append({"name": LEADER, "value": "$(LWS_LEADER_ADDRESS)"})
        if RANK in names:
            found.append({"name": RANK, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{SET}/worker-index']"}}})
        return found

    def _probes(self) -> Object:
        """Starting may take long; once it serves, three missed answers restart it."""
        path = self.plan.options.needed("fact", "health").value
        asked = {"httpGet": {"path": path, "port": "http"}, "periodSeconds": PROBE_S}
        return {
            "startupProbe": {**asked, "failureThreshold": START_S // PROBE_S},
            "readinessProbe": {**asked, "failureThreshold": 3},
            "livenessProbe": {**asked, "failureThreshold": 3, "timeoutSeconds": PROBE_S},
        }

    def _mounts(self) -> list[Object]:
        found: list[Object] = [{"name": "shared-memory", "mountPath": "/dev/shm"}]  # noqa: S108 - a mount of the pod
        found.append({"name": "weights", "mountPath": self.folder})
        return found + ([{"name": "config", "mountPath": CONFIG_FOLDER}] if self.command.files else [])

    def _volumes(self) -> list[Object]:
        kept: Object = {"persistentVolumeClaim": {"claimName": self.claim}} if self.claim else {"emptyDir": {}}
        found: list[Object] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}}]
        found.append({"name": "weights", **kept})
        return found + ([{"name": "config", "configMap": {"name": self.name}}] if self.command.files else [])
