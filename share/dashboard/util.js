// util.js - elements, numbers and foreign text. Every text that comes from a run is set as text, never as markup.
'use strict';
const T = {};

// el('p', {class: 'x', onclick: f}, 'text', child): attributes that begin with "on" are listeners.
T.el = function (name, attributes, ...children) {
  const svg = ['svg', 'path', 'line', 'text', 'rect', 'g', 'polyline', 'title', 'circle'].includes(name);
  const e = svg ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith('on')) e.addEventListener(key.slice(2), value);
    else if (key === 'css') for (const [k, v] of Object.entries(value)) e.style.setProperty(k, v);
    else if (value !== false && value != null) e.setAttribute(key, value);
  }
  for (const c of children) if (c != null) e.append(c);
  return e;
};

// The members of a list in the log that have members themselves.
T.list = x => Array.isArray(x) ? x.filter(y => y && typeof y === 'object') : [];

// What a reader could be deceived by (control bytes, direction marks) is shown as its code.
const hidden = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;
T.show = function (text) {
  return String(text).replace(/\r/g, '\\r').replace(hidden, function (c) {
    const n = c.codePointAt(0);
    return n < 256 ? '\\x' + n.toString(16).padStart(2, '0') : '\\u' + n.toString(16).padStart(4, '0');
  });
};

T.number = function (x, digits) {
  if (x == null || !isFinite(x)) return '\u2013';
  const a = Math.abs(x), d = digits || 4;
  if (a !== 0 && (a < 1e-3 || a >= 1e7)) return x.toExponential(d - 1).replace(/\.?0+e/, 'e').replace('e+', 'e');
  return String(Number(x.toPrecision(d)));
};
// Labels of an axis: all of them as decimals, or all with the power of ten of the largest; as many digits as tell them apart.
T.tenths = function (all) {
  const most = Math.max(...all.map(Math.abs)), top = most > 0 ? Math.floor(Math.log10(most) + 1e-9) : 0, power = top < -3 || top > 6 ? top : 0;
  const gap = all.length > 1 ? (all[1] - all[0]) / 10 ** power : 1, digits = Math.min(12, Math.max(0, Math.ceil(2 - Math.log10(gap))));
  return all.map(x => String(Number((x / 10 ** power).toFixed(digits))) + (power && x ? 'e' + power : ''));
};
// The same by a format for values, with more digits where labels would be equal.
T.labels = function (all, format) {
  for (let digits = undefined; ; digits = (digits || 3) + 1) {
    const out = all.map(x => format(x, digits));
    if (digits > 12 || new Set(out).size === out.length) return out;
  }
};
T.many = (n, word) => T.whole(n) + ' ' + word + (n === 1 ? '' : 's');
T.whole = x => x == null ? '\u2013' : Math.round(x).toLocaleString('en-US');
T.count = function (x, digits) {
  if (x == null || !isFinite(x)) return '\u2013';
  for (const [unit, size] of [['T', 1e12], ['B', 1e9], ['M', 1e6], ['K', 1e3]])
    if (Math.abs(x) >= size) return T.number(x / size, digits || 3) + ' ' + unit;
  return T.number(x, digits || 3);
};
// Labels of an axis of steps: all of them whole, or all in thousands and more.
T.steps = all => all.some(x => x >= 1e5) ? T.labels(all, T.count) : all.map(T.whole);
T.bytes = function (x) {
  if (x == null || !isFinite(x)) return '\u2013';
  for (const [unit, size] of [['TiB', 2 ** 40], ['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]])
    if (x >= size) return (x / size).toFixed(2) + ' ' + unit;
  return x + ' B';
};
T.seconds = function (s, digits) {
  if (s == null || !isFinite(s)) return '\u2013';
  if (s <= 0) return '0 s';
  if (s < 1e-3) return T.number(s * 1e6, digits || 3) + ' \u00b5s';
  if (s < 1) return T.number(s * 1e3, digits || 3) + ' ms';
  if (s < 120 || digits) return T.number(s, digits || 3) + ' s';
  if (s < 7200) return Math.floor(s / 60) + ' min';
  if (s < 172800) return Math.floor(s / 3600) + ' h ' + Math.floor(s % 3600 / 60) + ' min';
  return T.number(s / 86400, 3) + ' days';
};
T.percent = (x, digits) => x == null || !isFinite(x) ? '\u2013' : T.number(100 * x, digits || 3) + ' %';
T.when = t => t == null ? '\u2013' : new Date(1000 * t).toISOString().slice(0, 19).replace('T', ' ') + ' UTC';
T.clock = t => t == null ? '\u2013' : T.el('time', {title: T.when(t)}, T.when(t).slice(5, 19));
// The last part of a run's directory, with as many parts before it as tell it from the other runs.
T.name = function (dir) {
  const parts = d => d.split('/').filter(x => x && x !== '.'), own = parts(dir), others = T.runs.filter(r => r.dir !== dir).map(r => parts(r.dir));
  let n = 1;
  while (n < own.length && others.some(o => o.slice(-n).join('/') === own.slice(-n).join('/'))) n++;
  return T.show(own.slice(-n).join('/') || dir);
};

// table([['step', 'n'], ['path']], [[1, 'a'], ...]): heads have a second part: 'n' columns of numbers, 'w' of texts that wrap, 'b' of bars.
T.table = function (caption, heads, rows) {
  const cell = (tag, x, h) => T.el(tag, {class: h[1] || null, scope: tag === 'th' ? 'col' : null}, x instanceof Node ? x : T.show(x ?? '\u2013'));
  const all = T.el('table', {}, caption ? T.el('caption', {}, caption) : null,
    T.el('thead', {}, T.el('tr', {}, ...heads.map(h => cell('th', h[0], h)))),
    T.el('tbody', {}, ...rows.map(r => T.el('tr', {}, ...r.map((x, i) => cell('td', x, heads[i]))))));
  return T.el('div', {class: 'scroll'}, all);
};
T.color = i => 'var(--c' + i % 12 + ')';
