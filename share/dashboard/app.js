// app.js - what the page holds, where it comes from, and what keys and controls do. The same page is served live
// (fetch and an event stream) and written to a file (all answers in the element "data").
'use strict';
{

T.view = {smooth: 0.6, log: false, spread: true, from: null, to: null};
T.runs = [];
T.series = [];
T.details = [];
T.configs = [];
T.current = 0;
T.log = 0;

const stored = document.getElementById('data');
const answers = stored ? JSON.parse(stored.textContent) : null;
const $ = id => document.getElementById(id);

async function get(path) {
  if (answers) return answers[path] || null;
  const r = await fetch(path, {credentials: 'same-origin'});
  return r.ok ? r.json() : null;
}

T.range = function () {
  let first = Infinity, last = -Infinity;
  T.series.forEach(function (s, i) {
    if (!s || !s.rows || !T.runs[i].shown) return;
    first = Math.min(first, s.first);
    last = Math.max(last, s.last);
  });
  if (first > last) return [0, 1];
  return [T.view.from == null ? first : T.view.from, T.view.to == null ? last : T.view.to];
};

T.zoom = function (from, to) {
  T.view.from = T.view.to = null;
  const all = T.range();
  if (from != null && to - from >= 2 && to - from < all[1] - all[0]) {
    T.view.from = Math.max(all[0], from);
    T.view.to = Math.min(all[1], to);
  }
  $('range').textContent = T.view.from == null ? '' : 'steps ' + T.whole(T.view.from) + ' to ' + T.whole(T.view.to);
  loadSeries().then(draw);
};

T.pickLog = function (i) {
  T.log = i;
  loadLog().then(() => drawPanel('logs'));
};

const points = () => answers ? 2000 : Math.min(2000, Math.max(300, 2 * Math.round(window.innerWidth / 4)));

async function loadSeries() {
  const part = answers || T.view.from == null ? '' : '&from=' + T.view.from + '&to=' + T.view.to;
  T.series = await Promise.all(T.runs.map((r, i) => r.shown ? get('/api/series?run=' + i + '&n=' + points() + part) : T.series[i] || null));
  if (answers && T.view.from != null) T.series = T.series.map(cut);
}

// In a file there is no server to ask again: the part of the points that is looked at.
function cut(s) {
  if (!s) return s;
  const keep = s.step.map((x, i) => i).filter(i => s.step[i] >= T.view.from && s.step[i] <= T.view.to), out = {...s, step: keep.map(i => s.step[i])};
  if (s.evals) out.evals = s.evals.map(cut);
  for (const [k, v] of Object.entries(s)) if (v && v.mean) out[k] = Object.fromEntries(Object.entries(v).map(([n, y]) => [n, keep.map(i => y[i])]));
  return out;
}

async function loadLog() {
  T.logData = await get('/api/log?run=' + T.current + '&which=' + T.log);
}

async function loadRanks() {
  [T.ranks, T.health] = await Promise.all([get('/api/ranks?run=' + T.current), get('/api/health?run=' + T.current)]);
}

async function loadRuns() {
  const now = await get('/api/runs');
  if (!now) return false;
  T.runs = now.map((r, i) => ({...r, shown: T.runs[i] ? T.runs[i].shown : true}));
  return true;
}

async function load() {
  await loadSeries();
  T.details = await Promise.all(T.runs.map((r, i) => get('/api/run?run=' + i)));
  T.configs = T.details.map(d => d && d.config ? d.config.options : null);
  [T.heatData, T.timelineData] = await Promise.all([get('/api/heat?run=' + T.current), get('/api/timeline?run=' + T.current)]);
  await Promise.all([loadRanks(), loadLog()]);
}

function tile(value, label) {
  return T.el('div', {class: 'tile' + (value.length > 12 ? ' long' : '')}, T.el('b', {}, value), T.el('span', {}, label));
}

// What draws from a log that says something unheard of leaves a line, and everything else on the page is drawn.
function guarded(host, draw) {
  try {
    draw();
  } catch (e) {
    host.append(T.el('p', {class: 'empty'}, 'the log says something that cannot be drawn here: ' + T.show(e.message)));
    console.error(e);
  }
}

function drawHead() {
  const r = T.details[T.current], head = $('head');
  head.replaceChildren();
  if (r) guarded(head, () => head.append(...headOf(r)));
}

function headOf(r) {
  const last = r.last || {}, total = r.total_steps, live = ['runs', 'paused'].includes(r.state);
  const left = live && total > r.step && r.step_s > 0 ? (total - r.step) * r.step_s : null;
  const evals = ((T.series[T.current] || {}).evals || [])[0], best = evals && evals.loss ? Math.min(...evals.loss.mean.filter(x => x != null)) : null;
  const saved = r.notes.filter(n => n.event === 'checkpoint').pop(), l = r.layout || {};
  $('state').textContent = T.show(r.state);
  $('state').className = 'state ' + (['runs', 'paused', 'done', 'stopped', 'failed', 'dead'].includes(r.state) ? r.state : '');
  document.title = T.whole(r.step) + (total ? '/' + T.whole(total) : '') + ' ' + T.name(r.dir) + ' \u2013 Trireme';
  const tiles = [tile(T.whole(r.step) + (total ? ' / ' + T.whole(total) : ''), 'step'), tile(T.number(last.loss, 5), 'loss')];
  if (best != null) tiles.push(tile(T.number(evals.loss.mean[evals.loss.mean.length - 1], 5), 'eval, best ' + T.number(best, 4)));
  tiles.push(tile(T.count(last.tokens_per_s), 'tokens/s'));
  if (last.mfu != null) tiles.push(tile(T.percent(last.mfu), 'MFU'));
  tiles.push(tile(T.number(last.grad_norm, 4), 'gradient norm'), tile(T.number(last.lr, 3), 'learning rate'), tile(T.count(r.tokens_seen), 'tokens'));
  tiles.push(tile(live ? T.seconds(left) : T.seconds(Math.max(r.end ? r.end.seconds : 0, r.last_time - r.first_time)), live ? 'left' : 'took'));
  if (saved) tiles.push(tile(T.whole(saved.step), 'last checkpoint'));
  if (l.dp) tiles.push(tile(['dp', 'tp', 'pp', 'cp', 'ep'].filter(k => l[k] > 1).map(k => k + ' ' + l[k]).join(' ') || '1 rank', 'layout' + (l.zero ? ', zero ' + l.zero : '')));
  const out = [T.el('div', {class: 'tiles'}, ...tiles)];
  const why = ['failed', 'dead'].includes(r.state) ? T.faults(r).pop() : null;
  if (why) out.push(T.el('p', {class: 'why'}, T.el('b', {}, 'last fault'), ' ' + (why.rank >= 0 ? 'rank ' + why.rank + ' ' : '') + T.show(why.cause || '')));
  if (total) out.push(T.el('progress', {max: total, value: r.step, 'aria-label': 'steps done'}));
  return out;
}

function drawPanel(id) {
  const p = T.panels.find(x => x.id === id), body = $('body-' + id), r = T.details[T.current];
  if (!body) return;
  const scrolled = [...body.querySelectorAll('.scroll, pre.log')].map(e => e.scrollTop);
  const hadFocus = body.contains(document.activeElement) && document.activeElement !== document.body;
  const stays = T.view.from != null && !$('panel-' + id).hidden; // a part of the steps without values is no reason to go
  $('panel-' + id).hidden = !!p.optional && !stays && !p.optional();
  if (!r || $('panel-' + id).hidden) return;
  body.replaceChildren();
  guarded(body, () => p.draw(body, r));
  body.querySelectorAll('.scroll, pre.log').forEach(function (e, i) {
    if (e.scrollHeight > e.clientHeight || e.scrollWidth > e.clientWidth) e.tabIndex = 0; // so that keys scroll it
    if (scrolled[i] != null) e.scrollTop = scrolled[i];
  });
  if (hadFocus) { const e = body.querySelector('[tabindex], select'); if (e) e.focus({preventScroll: true}); }
}

function draw() {
  drawHead();
  for (const p of T.panels) drawPanel(p.id);
  document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1);
}

function buildPanels() {
  $('panels').append(...T.panels.map(p => T.el('section', {id: 'panel-' + p.id, class: 'panel' + (p.wide ? ' wide' : ''), tabindex: -1, 'aria-labelledby': 'title-' + p.id},
    T.el('header', {}, T.el('h2', {id: 'title-' + p.id}, p.title)), T.el('div', {id: 'body-' + p.id}))));
}

function buildRuns() {
  $('run').replaceChildren(...T.runs.map((r, i) => T.el('option', {value: i, selected: i === T.current ? '' : null}, T.show(r.dir))));
  if (T.runs.length < 2) return;
  $('runs').replaceChildren(...T.runs.map((r, i) => T.el('label', {}, T.el('input', {type: 'checkbox', checked: r.shown ? '' : null,
    onchange: function (e) { T.runs[i].shown = e.target.checked; loadSeries().then(draw); }}),
    T.el('span', {class: 'key', css: {background: T.color(i)}}), T.name(r.dir))));
}

function pickRun(i) {
  T.current = i;
  $('run').value = i;
  load().then(draw);
}

function smooth(x) {
  T.view.smooth = Math.min(0.99, Math.max(0, x));
  $('smooth').value = T.view.smooth;
  $('smooth-value').textContent = T.view.smooth.toFixed(2);
  draw();
}

function move(by) {
  const all = [...document.querySelectorAll('.panel:not([hidden])')], at = all.findIndex(p => p.contains(document.activeElement));
  const to = all[Math.min(all.length - 1, Math.max(0, at + by))];
  to.focus();
  to.scrollIntoView({block: 'nearest'});
}

function listenToKeys() {
  document.addEventListener('keydown', function (e) {
    if (e.ctrlKey || e.metaKey || e.altKey || /^(SELECT|TEXTAREA)$/.test(e.target.tagName)) return;
    const act = {n: () => move(1), p: () => move(-1), l: () => $('log').click(), s: () => smooth(T.view.smooth + 0.1), S: () => smooth(T.view.smooth - 0.1),
      r: () => pickRun((T.current + 1) % T.runs.length), 0: () => T.zoom(null, null), '?': () => $('keys').showModal()}[e.key];
    if (act) { act(); e.preventDefault(); }
  });
  $('controls').addEventListener('submit', e => e.preventDefault());
  $('help').addEventListener('click', () => $('keys').showModal());
  $('smooth').addEventListener('input', e => smooth(Number(e.target.value)));
  $('log').addEventListener('change', function (e) { T.view.log = e.target.checked; draw(); });
  $('spread').addEventListener('change', function (e) { T.view.spread = e.target.checked; draw(); });
  $('all').addEventListener('click', () => T.zoom(null, null));
  $('run').addEventListener('change', e => pickRun(Number(e.target.value)));
}

// News: the versions of all runs. Answers are asked for one round at a time, so that a slow line skips rounds.
function follow() {
  let busy = false, seen = T.runs.map(r => r.version);
  const source = new EventSource('/events');
  source.addEventListener('tick', async function (e) {
    $('live').textContent = 'connected';
    if (busy) return;
    busy = true;
    try {
      const versions = JSON.parse(e.data), changed = versions.some((v, i) => v !== seen[i]);
      seen = versions;
      if (changed) {
        await loadRuns();
        await load();
        draw();
      } else {
        await loadRanks();
        for (const id of ['ranks', 'machine', 'memory']) drawPanel(id);
      }
    } finally {
      busy = false;
    }
  });
  source.onerror = function () { $('live').textContent = 'not connected'; };
}

async function start() {
  buildPanels();
  listenToKeys();
  if (!await loadRuns()) { $('state').textContent = 'no answer'; return; }
  buildRuns();
  await load();
  smooth(T.view.smooth);
  let width = window.innerWidth;
  window.addEventListener('resize', function () { if (window.innerWidth !== width) { width = window.innerWidth; draw(); } });
  if (answers) $('live').textContent = 'written ' + T.when(answers.written);
  else follow();
}
start();
}
