"use strict";
// Behaviour of a page: sorting tables, unfolding trees, charts that answer to mouse, touch and keys, two themes. Asks the network for nothing.
(() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("data").textContent);
  const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();
  const figure = (value) => (value === null ? "" : value.toLocaleString("en-US", { maximumSignificantDigits: 4 }));
  const withUnit = (value, unit) => (figure(value) + " " + unit).trim();

  function make(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  // Tables: a click on a heading sorts by it, a second one the other way; numbers by value in base units, words by the alphabet.
  function key(row, column) {
    const cell = row.cells[column];
    return "v" in cell.dataset ? Number(cell.dataset.v) : null;
  }
  function sort(button) {
    const head = button.closest("th"), table = head.closest("table"), body = table.tBodies[0], column = head.cellIndex;
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentElement.cells) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const order = (a, b) => {
      const [x, y] = [key(a, column), key(b, column)], [s, t] = [a.cells[column].textContent, b.cells[column].textContent];
      if (!s || !t) return !s - !t;
      if ((x === null) !== (y === null)) return (x === null) - (y === null);
      return (x === null ? s.localeCompare(t, "en", { numeric: true }) : x - y) * (down ? -1 : 1);
    };
    body.append(...[...body.rows].sort(order));
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("th button");
    if (button) sort(button);
  });

  // Trees: a node's children are made when it is opened.
  function branch(place) {
    return make("ul", { class: "branch" }, ...data.nodes[place][4].map((child) => make("li", {}, node(child))));
  }
  function node(place) {
    const [label, value, equation, source, children] = data.nodes[place];
    const number = make("span", { class: "num" }, value), name = make("b", {}, label);
    if (!children.length) return make("div", { class: "leaf" }, name, " ", number, " ", make("span", { class: "source" }, equation ? "= " + equation : source));
    return make("details", { class: "node", "data-node": place }, make("summary", {}, name, " ", number, " ", make("code", {}, "= " + equation)));
  }
  document.addEventListener("toggle", (event) => {
    const opened = event.target;
    if (!opened.open) return;
    if (opened.matches(".node") && opened.children.length === 1) opened.append(branch(Number(opened.dataset.node)));
    if (opened.matches(".values") && opened.children.length === 1) opened.append(values(data.charts[Number(opened.dataset.chart)]));
  }, true);

  // The values of a chart as a table.
  function values(chart) {
    const named = chart.series.some((s) => s.names), banded = chart.series.some((s) => s.low);
    const unit = (axis) => axis.label + (axis.unit ? ", " + axis.unit : "");
    const head = ["series", ...(named ? ["what"] : []), unit(chart.x), unit(chart.y), ...(banded ? ["from", "to"] : [])];
    const cell = (value) => {
      const found = make("td", { class: "right" }, figure(value));
      if (value !== null) found.dataset.v = value;
      return found;
    };
    const rows = chart.series.flatMap((s) => s.x.map((x, i) => make("tr", {}, make("td", {}, s.label),
      ...(named ? [make("td", {}, s.names ? s.names[i] : "")] : []), cell(x), cell(s.y[i]),
      ...(banded ? [cell(s.low ? s.low[i] : null), cell(s.high ? s.high[i] : null)] : []))));
    const heads = head.map((text) => make("th", { scope: "col", "aria-sort": "none" }, make("button", { type: "button" }, text)));
    const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
    return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Values of the chart: " + chart.title }, table);
  }

  // Charts.
  function linearTicks(low, high, most) {
    const rough = (high - low) / most, size = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * size).find((s) => s >= rough * 0.999);
    const found = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high * (1 + 1e-12); n++) found.push(Number((n * step).toPrecision(12)));
    return found;
  }
  function logTicks(low, high, most) {
    const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high)), found = [];
    for (const steps of [[1, 2, 5], [1, 3], [1]]) {
      const ticks = [];
      for (let e = from; e <= to; e++) for (const m of steps) ticks.push(Number((m * 10 ** e).toPrecision(3)));
      const inside = ticks.filter((t) => t >= low && t <= high);
      if (inside.length <= most) return inside.length > 2 ? inside : linearTicks(low, high, most);
      found.push(inside);
    }
    const decades = found[2], every = Math.ceil(decades.length / most);
    return decades.filter((_, i) => i % every === 0);
  }
  // Rows over a common horizontal axis, as the library takes them: a row for each value, and one more where a series has two points there.
  function aligned(lists) {
    const points = lists.flatMap((list, s) => list.x.map((x, i) => [x, s, list.y[i]])).filter((p) => p[2] !== null && p[0] !== null);
    points.sort((a, b) => a[0] - b[0]);
    const rows = [];
    for (const [x, s, y] of points) {
      let row = rows[rows.length - 1];
      if (!row || row[0] !== x || row[s + 1] !== null) rows.push((row = [x, ...lists.map(() => null)]));
      row[s + 1] = y;
    }
    return [0, ...lists.map((_, s) => s + 1)].map((column) => rows.map((row) => row[column]));
  }
  const MARKERS = {
    circle: (path, x, y, r) => { path.moveTo(x + r, y); path.arc(x, y, r, 0, 2 * Math.PI); },
    square: (path, x, y, r) => path.rect(x - 0.9 * r, y - 0.9 * r, 1.8 * r, 1.8 * r),
    triangle: (path, x, y, r) => { path.moveTo(x, y - 1.2 * r); path.lineTo(x + 1.1 * r, y + 0.8 * r); path.lineTo(x - 1.1 * r, y + 0.8 * r); path.closePath(); },
    diamond: (path, x, y, r) => { path.moveTo(x, y - 1.3 * r); path.lineTo(x + 1.3 * r, y); path.lineTo(x, y + 1.3 * r); path.lineTo(x - 1.3 * r, y); path.closePath(); },
  };
  const DASHES = { dashed: [8, 4], dotted: [2, 4] };
  function markers(look, radius) {
    return (u, s, first, last) => {
      const path = new Path2D();
      for (let i = first; i <= last; i++) {
        const y = u.data[s][i];
        if (y !== null && y !== undefined) MARKERS[look](path, u.valToPos(u.data[0][i], "x", true), u.valToPos(y, "y", true), radius * devicePixelRatio);
      }
      return { stroke: null, fill: path };
    };
  }
  function whole(chart, axis) {
    const each = chart.series.flatMap((s) => (axis === "x" ? [s.x] : [s.y, s.low || [], s.high || []])).concat(chart.marks.filter((m) => m.axis === axis).map((m) => [m.value]));
    let low = Infinity, high = -Infinity;
    for (const list of each) for (const v of list) if (v !== null) { low = Math.min(low, v); high = Math.max(high, v); }
    if (low === Infinity) return [0, 1];
    if (chart[axis].log) return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.06, high * (high / low) ** 0.06];
    const from = Math.min(0, low), room = (axis === "y" ? 0.08 : 0.04) * (high - from) || 1;
    return [axis === "x" && low > 0.4 * high ? low - 0.04 * (high - low || 1) : from < 0 ? from - room : 0, high + room];
  }
  const charts = [];
  class Drawn {
    constructor(element, chart) {
      Object.assign(this, { element, chart, at: null, shown: chart.series.map(() => true) });
      this.view = { x: whole(chart, "x"), y: whole(chart, "y") };
      this.lists = chart.series.map((s) => ({ x: s.x, y: s.y }));
      this.bands = [];
      chart.series.forEach((s, i) => {
        if (!s.low || s.look in MARKERS) return;
        this.bands.push({ of: i, high: this.lists.length + 2, low: this.lists.length + 1 });
        this.lists.push({ x: s.x, y: s.low }, { x: s.x, y: s.high });
      });
      this.plot = new uPlot(this.options(), aligned(this.lists), element);
      this.tip = make("div", { class: "tip", hidden: "" });
      this.dot = make("div", { class: "dot", hidden: "" });
      this.said = make("div", { class: "unseen", "aria-live": "polite" });
      this.plot.over.append(this.dot);
      element.append(this.tip, this.said);
      this.listen();
    }
    options() {
      const { chart } = this, wide = this.element.clientWidth;
      const axis = (name) => ({
        stroke: () => colour("muted"), grid: { stroke: () => colour("grid"), width: 1 }, ticks: { stroke: () => colour("edge"), width: 1, size: 5 },
        font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 18, filter: (u, splits) => splits,
        splits: (u, _, low, high) => (chart[name].log ? logTicks : linearTicks)(low, high, name === "y" ? 7 : Math.max(3, Math.floor(u.width / 90))),
        values: (u, splits) => splits.map(figure),
        size: name === "x" ? 32 : (u, texts) => 14 + 7 * Math.max(2, ...(texts || []).map((t) => t.length)),
        ...(name === "x" ? { label: chart.x.label + (chart.x.unit ? ", " + chart.x.unit : "") } : {}),
      });
      const scale = (name) => ({ time: false, auto: true, distr: chart[name].log ? 3 : 1, range: () => this.view[name] });
      return {
        pxAlign: 0, width: wide, height: wide < 480 ? 270 : 330, legend: { show: false }, padding: [8, 14, 0, 0], scales: { x: scale("x"), y: scale("y") },
        axes: [axis("x"), axis("y")], series: [{}, ...this.lists.map((_, i) => this.series(i))],
        bands: this.bands.map((b) => ({ series: [b.high, b.low], fill: () => colour(chart.series[b.of].colour) + "33" })),
        cursor: { points: { show: false }, x: false, y: false, drag: { x: true, y: true, setScale: false, uni: 12 }, bind: { dblclick: () => () => this.reset() } },
        hooks: { draw: [(u) => this.drawMarks(u)], setSelect: [(u) => this.select(u)] },
      };
    }
    series(i) {
      const s = this.chart.series[i];
      if (!s) return { stroke: "transparent", width: 0, spanGaps: true, points: { show: false } };
      const stroke = () => colour(s.colour), common = { label: s.label, pxAlign: 0, points: { show: false }, spanGaps: true };
      if (s.look in MARKERS) return { ...common, fill: () => colour(s.colour) + "cc", width: 0, paths: markers(s.look, s.x.length > 400 ? 3 : 4.5) };
      return { ...common, stroke, width: 2, dash: DASHES[s.look], ...(s.look === "step" ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}) };
    }
    drawMarks(u) {
      const { ctx, bbox } = u;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      ctx.textBaseline = "alphabetic";
      ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
      this.chart.marks.forEach((mark, n) => {
        const at = u.valToPos(mark.value, mark.axis, true), across = mark.axis === "y", gap = 4 * devicePixelRatio;
        ctx.strokeStyle = colour(mark.colour);
        ctx.fillStyle = colour("ink");
        ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
        ctx.lineWidth = 1.5 * devicePixelRatio;
        ctx.beginPath();
        if (across) { ctx.moveTo(bbox.left, at); ctx.lineTo(bbox.left + bbox.width, at); }
        else { ctx.moveTo(at, bbox.top); ctx.lineTo(at, bbox.top + bbox.height); }
        ctx.stroke();
        const left = !across && at > bbox.left + 0.6 * bbox.width;
        ctx.textAlign = left ? "right" : "left";
        const place = [across ? bbox.left + gap : at + (left ? -gap : gap), across ? at - gap : bbox.top + (3 + n % 3) * 4 * gap];
        Object.assign(ctx, { strokeStyle: colour("ground"), lineWidth: 4 * devicePixelRatio, lineJoin: "round" });
        ctx.setLineDash([]);
        ctx.strokeText(mark.label, ...place);
        ctx.fillText(mark.label, ...place);
      });
      ctx.restore();
    }
    listen() {
      const { over } = this.plot, box = this.element;
      over.addEventListener("mousemove", (event) => this.show(this.near(event.offsetX, event.offsetY)));
      over.addEventListener("mouseleave", () => this.show(null));
      box.addEventListener("keydown", (event) => this.press(event));
      box.addEventListener("blur", () => this.show(null));
      const tools = box.closest("figure").querySelectorAll(".tools button");
      [() => this.zoom(0.5), () => this.zoom(2), () => this.reset()].forEach((act, i) => tools[i].addEventListener("click", act));
      box.closest("figure").querySelectorAll(".legend button").forEach((button, i) => button.addEventListener("click", () => {
        this.shown[i] = !this.shown[i];
        button.setAttribute("aria-pressed", this.shown[i]);
        this.plot.setSeries(i + 1, { show: this.shown[i] });
        for (const b of this.bands) if (b.of === i) for (const place of [b.low, b.high]) this.plot.setSeries(place, { show: this.shown[i] });
        this.show(null);
      }));
    }
    place(s, i) {
      const { x, y } = this.lists[s];
      return x[i] === null || y[i] === null ? null : [this.plot.valToPos(x[i], "x"), this.plot.valToPos(y[i], "y")];
    }
    near(left, top) {
      let found = null, least = 40 ** 2;
      this.chart.series.forEach((s, n) => {
        if (!this.shown[n]) return;
        for (let i = 0; i < s.x.length; i++) {
          const p = this.place(n, i), far = p ? (p[0] - left) ** 2 + (p[1] - top) ** 2 : Infinity;
          if (far < least) [found, least] = [{ s: n, i }, far];
        }
      });
      return found;
    }
    // What a point says: its name, both values with units, and what the other lines have there.
    text(at) {
      const { chart } = this, own = chart.series[at.s], x = own.x[at.i], lines = [];
      if (own.names && own.names[at.i]) lines.push(own.names[at.i]);
      lines.push(`${chart.x.label}: ${withUnit(x, chart.x.unit)}`);
      chart.series.forEach((s, n) => {
        const i = n === at.s ? at.i : own.look in MARKERS || s.look in MARKERS ? -1 : s.x.indexOf(x);
        if (i < 0 || !this.shown[n] || s.y[i] === null) return;
        const band = s.low ? ` (80 % from ${figure(s.low[i])} to ${figure(s.high[i])})` : "";
        lines.push(`${s.label}: ${withUnit(s.y[i], chart.y.unit)}${band}`);
      });
      return lines;
    }
    show(at) {
      this.at = at;
      const p = at && this.place(at.s, at.i), inside = p && p[0] >= 0 && p[1] >= 0 && p[0] <= this.plot.over.clientWidth && p[1] <= this.plot.over.clientHeight;
      this.tip.hidden = this.dot.hidden = !inside;
      if (!inside) return;
      Object.assign(this.dot.style, { left: p[0] + "px", top: p[1] + "px" });
      this.tip.replaceChildren(...this.text(at).map((line) => make("p", {}, line)));
      const left = p[0] + this.plot.over.offsetLeft, top = p[1] + this.plot.over.offsetTop, { offsetWidth: w, offsetHeight: h } = this.tip;
      this.tip.style.left = Math.max(0, Math.min(left + (left > this.element.clientWidth / 2 ? -w - 12 : 12), this.element.clientWidth - w)) + "px";
      this.tip.style.top = Math.max(0, top - h - 10) + "px";
    }
    press(event) {
      const act = { "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.reset(), Escape: () => this.reset(),
        ArrowRight: () => this.step(1), ArrowLeft: () => this.step(-1), ArrowDown: () => this.turn(1), ArrowUp: () => this.turn(-1) }[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
      this.said.textContent = this.at ? this.text(this.at).join(", ") : "";
    }
    step(by) {
      const seen = this.chart.series.map((_, n) => n).filter((n) => this.shown[n] && this.chart.series[n].x.length);
      if (!seen.length) return;
      const s = this.at && seen.includes(this.at.s) ? this.at.s : seen[0], { x } = this.chart.series[s];
      const order = x.map((_, i) => i).sort((a, b) => x[a] - x[b]), now = this.at && this.at.s === s ? order.indexOf(this.at.i) + by : 0;
      this.show({ s, i: order[Math.max(0, Math.min(now, order.length - 1))] });
    }
    turn(by) {
      const seen = this.chart.series.map((_, n) => n).filter((n) => this.shown[n] && this.chart.series[n].x.length);
      if (!seen.length) return;
      const now = this.at ? seen.indexOf(this.at.s) : -by, s = seen[(now + by + seen.length) % seen.length];
      const x = this.at ? this.chart.series[this.at.s].x[this.at.i] : -Infinity, xs = this.chart.series[s].x;
      this.show({ s, i: xs.reduce((best, v, i) => (Math.abs(v - x) < Math.abs(xs[best] - x) ? i : best), 0) });
    }
    zoom(factor) {
      for (const name of ["x", "y"]) {
        const { log } = this.chart[name], to = log ? Math.log : (v) => v, back = log ? Math.exp : (v) => v;
        const [low, high] = this.view[name].map(to), half = ((high - low) * factor) / 2;
        const middle = this.at ? to((name === "x" ? this.lists[this.at.s].x : this.lists[this.at.s].y)[this.at.i]) : (low + high) / 2;
        this.view[name] = [back(middle - half), back(middle + half)];
      }
      this.again();
    }
    select(u) {
      const { left, top, width, height } = u.select;
      if (width > 5 || height > 5) {
        if (width > 5) this.view.x = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
        if (height > 5 && height < u.over.clientHeight) this.view.y = [u.posToVal(top + height, "y"), u.posToVal(top, "y")];
        this.again();
      }
      if (width || height) u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    }
    reset() {
      this.view = { x: whole(this.chart, "x"), y: whole(this.chart, "y") };
      this.again();
    }
    again() {
      const { at } = this;
      this.plot.setData(this.plot.data, true);
      this.show(at);
    }
    fit(width) {
      if (width && width !== this.plot.width) this.plot.setSize({ width, height: width < 480 ? 270 : 330 });
    }
  }

  // Stacked bars: a piece that is switched off leaves its place to the next ones.
  function bars(element) {
    const pieces = [...element.querySelectorAll(".part")], tip = make("div", { class: "tip", hidden: "" }), hidden = new Set();
    element.append(tip);
    const lay = () => {
      const ends = {};
      for (const piece of pieces) {
        const { bar, part, share } = piece.dataset, wide = hidden.has(part) ? 0 : Number(share);
        piece.setAttribute("x", (ends[bar] || 0) + "%");
        piece.setAttribute("width", wide + "%");
        ends[bar] = (ends[bar] || 0) + wide;
      }
    };
    element.closest("figure").querySelectorAll(".legend button").forEach((button) => button.addEventListener("click", () => {
      const off = !hidden.delete(button.dataset.part);
      if (off) hidden.add(button.dataset.part);
      button.setAttribute("aria-pressed", !off);
      lay();
    }));
    element.addEventListener("mousemove", (event) => {
      const said = event.target.closest("[data-tip]");
      tip.hidden = !said;
      if (!said) return;
      tip.textContent = said.dataset.tip;
      const box = element.getBoundingClientRect();
      tip.style.left = Math.max(0, Math.min(event.clientX - box.left + 12, box.width - tip.offsetWidth)) + "px";
      tip.style.top = event.clientY - box.top - tip.offsetHeight - 10 + "px";
    });
    element.addEventListener("mouseleave", () => { tip.hidden = true; });
  }

  // Themes: as the system says until the button says otherwise; paper is always light.
  const dark = matchMedia("(prefers-color-scheme: dark)"), theme = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  function painted() {
    theme.textContent = isDark() ? "Light theme" : "Dark theme";
    for (const chart of charts) chart.plot.redraw(true, true);
  }
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    painted();
  });
  dark.addEventListener("change", painted);
  const PAPER = 600;
  addEventListener("beforeprint", () => {
    root.dataset.print = "";
    for (const chart of charts) { chart.show(null); chart.fit(Math.min(PAPER, chart.plot.width)); chart.plot.redraw(true, true); }
  });
  addEventListener("afterprint", () => {
    delete root.dataset.print;
    for (const chart of charts) chart.fit(chart.element.clientWidth);
    painted();
  });

  for (const element of document.querySelectorAll(".plot")) charts.push(new Drawn(element, data.charts[Number(element.dataset.chart)]));
  document.querySelectorAll(".bars").forEach(bars);
  const sized = new ResizeObserver(() => { if (!("print" in root.dataset)) for (const chart of charts) chart.fit(chart.element.clientWidth); });
  for (const chart of charts) sized.observe(chart.element);
  painted();
})();
