// chart.js - curves over steps (SVG), a heat map (canvas), spans over time (SVG). A curve is drawn from points that the
// server has made of many steps each: the line is their mean, the band their extremes.
'use strict';
{

const LEFT = 56, LETTER = 6.6, RIGHT = 10, TOP = 8, BOTTOM = 24;

T.ticks = function (lo, hi, n) {
  if (!(hi - lo > 1e-12 * Math.abs(hi))) return [lo];
  const raw = (hi - lo) / n, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(k => k * power).find(s => 1.3 * s >= raw);
  const out = [];
  for (let i = Math.ceil(lo / step - 1e-9); i * step <= hi + 1e-9 * step; i++) out.push(i * step);
  return out;
};

// Weighted means of the points so far, without the pull of a first value (as TensorBoard smooths).
T.smoothed = function (y, weight) {
  let sum = 0, norm = 0;
  return y.map(function (v) {
    if (v == null) return null;
    sum = weight * sum + (1 - weight) * v;
    norm = weight * norm + 1 - weight;
    return sum / norm;
  });
};

function extent(lines, plan, log, spread) {
  let lo = Infinity, hi = -Infinity;
  const take = function (v) { if (v != null && isFinite(v) && (!log || v > 0)) { lo = Math.min(lo, v); hi = Math.max(hi, v); } };
  for (const l of lines) {
    l.shown.forEach(take);
    if (spread && l.min) { l.min.forEach(take); l.max.forEach(take); } else if (!l.points) l.mean.forEach(take);
  }
  if (lo > hi) return null;
  if (plan != null && plan < 3 * hi && 3 * plan > hi) take(plan); // a plan that is far off is only a number
  if (hi - lo <= 1e-9 * Math.abs(hi)) { const d = Math.abs(lo) * 0.05 || 1; lo = log ? lo / 1.2 : lo - d; hi += d; }
  if (!log) { const d = (hi - lo) * 0.04; if (!(lo >= 0 && lo - d < 0)) lo -= d; else lo = 0; hi += d; }
  return [lo, hi];
}

function path(step, y, sx, sy) {
  let d = '', pen = false;
  for (let i = 0; i < step.length; i++) {
    if (y[i] == null) { pen = false; continue; }
    const p = sx(step[i]).toFixed(1) + ' ' + sy(y[i]).toFixed(1);
    d += (pen ? 'L' : 'M') + p;
    pen = true;
  }
  return d;
}

function band(l, sx, sy) {
  const keep = l.step.map((s, i) => i).filter(i => l.min[i] != null);
  if (!keep.length) return '';
  const at = (i, y) => sx(l.step[i]).toFixed(1) + ' ' + sy(y).toFixed(1);
  return 'M' + keep.map(i => at(i, l.max[i])).join('L') + 'L' + keep.reverse().map(i => at(i, l.min[i])).join('L') + 'Z';
}

function nearest(step, x) {
  let lo = 0, hi = step.length - 1;
  while (lo < hi) { const mid = lo + hi >> 1; if (step[mid] < x) lo = mid + 1; else hi = mid; }
  return lo > 0 && x - step[lo - 1] < step[lo] - x ? lo - 1 : lo;
}

// spec: {label, format, lines: [{label, color, step, mean, min, max, points}], plan, planLabel, marks, range: [from, to]}
T.curve = function (host, spec) {
  const view = T.view, width = Math.max(280, host.clientWidth || 420), height = spec.tall ? 260 : 190;
  const lines = spec.lines.filter(l => l.step && l.step.length && l.mean);
  for (const l of lines) l.shown = l.points || spec.exact ? l.mean : T.smoothed(l.mean, view.smooth);
  const log = view.log && !spec.linear, y = extent(lines, spec.plan, log, view.spread);
  host.replaceChildren();
  if (!y) { host.append(T.el('p', {class: 'empty'}, spec.empty || 'no values')); return; }
  const x = spec.range, at = v => (v - x[0]) / (x[1] - x[0] || 1), ly = v => log ? Math.log(Math.max(v, 1e-300)) : v;
  const ticks = log ? T.ticks(Math.log10(y[0]), Math.log10(y[1]), 4).map(t => 10 ** t) : T.ticks(y[0], y[1], 5);
  const labels = spec.axis ? spec.axis(ticks) : T.labels(ticks, spec.format);
  const left = Math.max(LEFT, LETTER * Math.max(...labels.map(t => t.length)) + 8); // digits that tell labels apart need room
  const sx = v => left + at(v) * (width - left - RIGHT);
  const sy = v => TOP + (1 - (ly(v) - ly(y[0])) / (ly(y[1]) - ly(y[0]))) * (height - TOP - BOTTOM);
  const last = lines.filter(l => !l.points).map(l => l.label + ' ' + spec.format(l.last != null ? l.last : l.mean[l.mean.length - 1])).join(', ');
  const svg = T.el('svg', {class: 'curve', viewBox: '0 0 ' + width + ' ' + height, tabindex: 0, role: 'img',
    'aria-label': spec.label + ', steps ' + T.whole(x[0]) + ' to ' + T.whole(x[1]) + ', last ' + last});
  svg.append(...grid(x, ticks, labels, sx, sy, width, height, left));
  for (const m of spec.marks || []) if (m.step >= x[0] && m.step <= x[1])
    svg.append(T.el('line', {class: 'mark', x1: sx(m.step), x2: sx(m.step), y1: TOP, y2: height - BOTTOM}, T.el('title', {}, T.show(m.text))));
  if (spec.plan != null && spec.plan >= y[0] && spec.plan <= y[1]) svg.append(T.el('line', {class: 'plan', x1: left, x2: width - RIGHT, y1: sy(spec.plan), y2: sy(spec.plan)}));
  for (const l of lines) draw(svg, l, sx, sy, spec.exact ? {...view, smooth: 0} : view);
  const legend = T.el('ul', {class: 'legend'});
  host.append(svg, legend);
  tell(legend, lines, spec, null);
  listen(svg, legend, lines, spec, {x, sx, left, width, height});
};

function grid(x, ys, labels, sx, sy, width, height, left) {
  const out = [];
  ys.forEach(function (v, i) {
    out.push(T.el('line', {class: 'grid', x1: left, x2: width - RIGHT, y1: sy(v), y2: sy(v)}));
    out.push(T.el('text', {x: left - 5, y: sy(v) + 4, 'text-anchor': 'end'}, labels[i]));
  });
  const xs = T.ticks(x[0], x[1], width < 420 ? 3 : 6).filter(v => v === Math.round(v));
  const steps = T.steps(xs);
  xs.forEach((v, i) => out.push(T.el('text', {x: Math.min(sx(v), width - RIGHT - 12), y: height - 7, 'text-anchor': 'middle'}, steps[i])));
  out.push(T.el('text', {x: left - 5, y: height - 7, 'text-anchor': 'end'}, 'step'));
  out.push(T.el('line', {class: 'axis', x1: left, x2: width - RIGHT, y1: height - BOTTOM, y2: height - BOTTOM}));
  return out;
}

const dashes = ['4 3', '1 3', '9 3', '9 3 1 3']; // of several sets of evaluation data of one run

function draw(svg, l, sx, sy, view) {
  if (l.points) {
    for (let i = 0; i < l.step.length; i++) if (l.mean[i] != null)
      svg.append(T.el('circle', {cx: sx(l.step[i]), cy: sy(l.mean[i]), r: l.step.length > 100 ? 1.6 : 3.2, fill: l.color, stroke: 'var(--card)'}));
    svg.append(T.el('path', {d: path(l.step, l.mean, sx, sy), fill: 'none', stroke: l.color, 'stroke-width': 1, 'stroke-dasharray': dashes[l.set % dashes.length || 0]}));
    return;
  }
  if (view.spread && l.min) svg.append(T.el('path', {d: band(l, sx, sy), fill: l.color, opacity: 0.15}));
  else if (view.smooth > 0) svg.append(T.el('path', {d: path(l.step, l.mean, sx, sy), fill: 'none', stroke: l.color, opacity: 0.28}));
  svg.append(T.el('path', {d: path(l.step, l.shown, sx, sy), fill: 'none', stroke: l.color, 'stroke-width': 1.8, 'stroke-linejoin': 'round'}));
}

const keyOfPoints = l => T.el('svg', {class: 'key', viewBox: '0 0 24 10', 'aria-hidden': 'true'},
  T.el('path', {d: 'M0 5H24', stroke: l.color, 'stroke-width': 2, 'stroke-dasharray': dashes[l.set % dashes.length || 0]}));

// The legend, with the values at a step, or the last ones.
function tell(legend, lines, spec, step) {
  legend.replaceChildren();
  if (step != null) legend.append(T.el('li', {}, 'step ' + T.whole(step)));
  for (const l of lines) {
    const i = step == null ? l.step.length - 1 : nearest(l.step, step);
    const many = l.min && l.min[i] !== l.max[i] && step != null ? ' (' + spec.format(l.min[i]) + ' to ' + spec.format(l.max[i]) + ')' : '';
    legend.append(T.el('li', {}, l.points ? keyOfPoints(l) : T.el('span', {class: 'key', css: {background: l.color}}), l.label,
      T.el('b', {}, spec.format(step == null && l.last != null ? l.last : l.mean[i]) + many)));
  }
  if (spec.plan != null)
    legend.append(T.el('li', {}, T.el('span', {class: 'key dash', css: {'border-color': 'var(--dim)'}}), spec.planLabel || 'plan', T.el('b', {}, spec.format(spec.plan))));
}

function listen(svg, legend, lines, spec, g) {
  let cross = null, drag = null, pick = null;
  const stepAt = function (e) {
    const box = svg.getBoundingClientRect(), px = (e.clientX - box.left) * g.width / box.width;
    const share = (px - g.left) / (g.width - g.left - RIGHT);
    return Math.round(g.x[0] + Math.min(1, Math.max(0, share)) * (g.x[1] - g.x[0]));
  };
  const point = function (step) {
    if (cross) cross.remove();
    cross = null;
    if (step != null) {
      cross = T.el('line', {class: 'cross', x1: g.sx(step), x2: g.sx(step), y1: TOP, y2: g.height - BOTTOM});
      svg.append(cross);
    }
    svg.dataset.step = step == null ? '' : step;
    tell(legend, lines, spec, step);
  };
  svg.addEventListener('pointermove', function (e) {
    const step = stepAt(e);
    point(step);
    if (drag == null) return;
    if (pick) pick.remove();
    const a = g.sx(Math.min(drag, step)), b = g.sx(Math.max(drag, step));
    pick = T.el('rect', {class: 'pick', x: a, y: TOP, width: b - a, height: g.height - TOP - BOTTOM});
    svg.append(pick);
  });
  svg.addEventListener('pointerdown', function (e) { if (e.button === 0 && e.pointerType === 'mouse') drag = stepAt(e); });
  svg.addEventListener('pointerup', function (e) {
    const from = drag, to = stepAt(e);
    drag = null;
    if (pick) pick.remove();
    pick = null;
    if (from != null && Math.abs(to - from) * 50 > g.x[1] - g.x[0]) T.zoom(Math.min(from, to), Math.max(from, to));
  });
  svg.addEventListener('pointerleave', function () { drag = null; if (pick) pick.remove(); pick = null; point(null); });
  svg.addEventListener('dblclick', () => T.zoom(null, null));
  svg.addEventListener('keydown', function (e) {
    const first = lines[0].step, now = svg.dataset.step ? Number(svg.dataset.step) : null, span = g.x[1] - g.x[0];
    const i = now == null ? first.length : nearest(first, now), mid = now == null ? (g.x[0] + g.x[1]) / 2 : now;
    if (e.key === 'ArrowLeft') point(first[Math.max(0, i - 1)]);
    else if (e.key === 'ArrowRight') point(first[Math.min(first.length - 1, i + 1)]);
    else if (e.key === '+' || e.key === '=') T.zoom(Math.round(mid - span / 4), Math.round(mid + span / 4));
    else if (e.key === '-') T.zoom(Math.round(mid - span), Math.round(mid + span));
    else if (e.key === '0' || e.key === 'Escape') T.zoom(null, null);
    else return;
    e.preventDefault();
  });
}

// A colour for 0..1, in even steps of lightness: readable without hue.
T.heatColor = function (v) {
  const stops = [[20, 24, 60], [59, 62, 140], [33, 128, 141], [94, 190, 100], [250, 230, 60]];
  const at = Math.min(0.9999, Math.max(0, v)) * (stops.length - 1), i = Math.floor(at), f = at - i;
  return stops[i].map((c, k) => Math.round(c + f * (stops[i + 1][k] - c)));
};

// rows: [{name, norm: []}] over steps, on a logarithmic scale.
T.heat = function (host, step, rows) {
  let lo = Infinity, hi = 0;
  for (const r of rows) for (const v of r.norm) if (v > 0) { lo = Math.min(lo, v); hi = Math.max(hi, v); }
  host.replaceChildren();
  if (!(hi > 0)) { host.append(T.el('p', {class: 'empty'}, 'no norms above zero')); return; }
  const canvas = T.el('canvas', {width: step.length, height: rows.length, role: 'img',
    'aria-label': rows.length + ' layers by ' + step.length + ' steps, norms from ' + T.number(lo) + ' to ' + T.number(hi)});
  const height = Math.max(120, Math.min(420, 14 * rows.length));
  canvas.style.setProperty('height', height + 'px');
  const c = canvas.getContext('2d'), image = c.createImageData(step.length, rows.length);
  rows.forEach((r, y) => r.norm.forEach(function (v, x) {
    const k = 4 * (y * step.length + x), color = v > 0 ? T.heatColor(Math.log(v / lo) / (Math.log(hi / lo) || 1)) : [128, 128, 128];
    image.data.set([...color, v == null ? 60 : 255], k);
  }));
  c.putImageData(image, 0, 0);
  const every = Math.ceil(rows.length / (height / 14));
  const names = T.el('div', {class: 'names', css: {height: height + 'px'}}, ...rows.filter((r, i) => i % every === 0).map(r => T.el('span', {}, T.show(r.name))));
  const told = T.el('span', {}, '');
  canvas.addEventListener('pointermove', function (e) {
    const b = canvas.getBoundingClientRect(), x = Math.floor((e.clientX - b.left) / b.width * step.length), y = Math.floor((e.clientY - b.top) / b.height * rows.length);
    if (rows[y] && step[x] != null) told.textContent = T.show(rows[y].name) + ', step ' + T.whole(step[x]) + ': ' + T.number(rows[y].norm[x]);
  });
  const ramp = T.el('canvas', {class: 'ramp', width: 60, height: 1, 'aria-hidden': 'true'}), rc = ramp.getContext('2d');
  for (let i = 0; i < 60; i++) { rc.fillStyle = 'rgb(' + T.heatColor(i / 59) + ')'; rc.fillRect(i, 0, 1, 1); }
  host.append(T.el('div', {class: 'heat'}, names, canvas,
    T.el('div', {class: 'under'}, T.el('span', {}, 'step ' + T.whole(step[0])), told, T.el('span', {}, T.whole(step[step.length - 1])))),
    T.el('ul', {class: 'legend'}, T.el('li', {}, T.number(lo), ramp, T.number(hi)),
      rows.some(r => r.norm.includes(0)) ? T.el('li', {}, T.el('span', {class: 'key', css: {background: 'rgb(128, 128, 128)'}}), 'no gradient') : null));
};

const kinds = [[/^wait/, 'wait', 'var(--bad)'], [/^forward/, 'forward', 'var(--c0)'], [/^backward: w|^backward-w/, 'backward, weights', 'var(--c4)'],
  [/^backward/, 'backward', 'var(--c2)'], [/^(send|recv|pp)/, 'messages', 'var(--c3)'], [/^(gather|reduce|add|tree|tie|dp|tp)/, 'sums and gathers', 'var(--c1)'],
  [/^(update|norm|clip|loss)/, 'update', 'var(--c6)']];
const other = [null, 'other', 'var(--c7)'];

// spans: [[rank, begin, seconds, name, micro-batch]], a row a rank, `length` seconds wide.
T.spans = function (host, title, spans, length) {
  const ranks = [...new Set(spans.map(s => s[0]))].sort((a, b) => a - b), row = ranks.length > 16 ? 12 : 20;
  const width = Math.max(280, host.clientWidth || 420), left = 44, height = ranks.length * row + 22, seen = new Set();
  const sx = t => left + t / length * (width - left - 8);
  const svg = T.el('svg', {viewBox: '0 0 ' + width + ' ' + height, role: 'img', 'aria-label': title + ': ' + ranks.length + ' ranks, ' + T.seconds(length)});
  ranks.forEach(function (r, i) {
    if (ranks.length <= 32 || i % 4 === 0) svg.append(T.el('text', {x: left - 5, y: i * row + row - 6, 'text-anchor': 'end'}, String(r)));
    svg.append(T.el('line', {class: 'grid', x1: left, x2: width - 8, y1: (i + 1) * row - 1, y2: (i + 1) * row - 1}));
  });
  for (const [rank, begin, seconds, name, micro] of spans) {
    const x = sx(begin), w = Math.max(0.4, sx(begin + seconds) - x), kind = kinds.find(k => k[0].test(name)) || other, y = ranks.indexOf(rank) * row;
    if (x > width - 8) continue;
    seen.add(kind);
    const thin = kind[1] === 'wait' || kind[1] === 'messages' || kind[1] === 'sums and gathers';
    const rect = T.el('rect', {x: x.toFixed(2), y: y + (thin ? row * 0.62 : 2), width: w.toFixed(2), height: thin ? row * 0.3 : row - 4, fill: kind[2], stroke: 'var(--card)', 'stroke-width': w > 4 ? 0.7 : 0},
      T.el('title', {}, T.show(name) + (micro >= 0 ? ' ' + micro : '') + ', rank ' + rank + ', ' + T.seconds(seconds) + ' at ' + T.seconds(begin)));
    svg.append(rect);
    if (!thin && w > 18 && row > 14 && micro >= 0) svg.append(T.el('text', {class: 'on', x: x + w / 2, y: y + row - 6, 'text-anchor': 'middle'}, String(micro)));
  }
  for (const t of T.ticks(0, length, 5)) svg.append(T.el('text', {x: Math.min(sx(t), width - 24), y: height - 5, 'text-anchor': 'middle'}, t === 0 ? '0' : T.seconds(t)));
  host.append(T.el('p', {class: 'note'}, title), svg);
  return seen;
};
T.spanLegend = seen => T.el('ul', {class: 'legend'}, ...[...kinds, other].filter(k => seen.has(k)).map(k => T.el('li', {}, T.el('span', {class: 'key', css: {background: k[2]}}), k[1])));
}
