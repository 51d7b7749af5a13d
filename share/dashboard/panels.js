// panels.js - one function a panel: what of a run it shows. Each gets the run that is selected (r) and its own element.
'use strict';
{

// A step that is planned takes layout.step_s; then its tokens per second follow.
const planned = r => r.layout && r.layout.step_s > 0 && r.last.tokens > 0 ? r.last.tokens / r.layout.step_s : null;
const notes = (r, ...names) => r.notes.filter(n => names.includes(n.event));
const restarts = r => notes(r, 'start').slice(1);
const isSlow = n => n.action === 'goes on'; // an action that took far longer than it does: nothing was lost
T.faults = r => notes(r, 'fault').filter(n => !isSlow(n));
const marks = r => [...T.faults(r).map(n => ({step: Number((/step (\d+)/.exec(n.cause || '') || [])[1]) || n.after_step, text: n.cause})),
  ...restarts(r).map(n => ({step: n.after_step, text: 'restart'}))];

// The same column of every run that is shown, as lines.
function lines(column, more) {
  const out = [];
  T.runs.forEach(function (run, i) {
    const s = T.series[i], c = s && s[column];
    if (!run.shown || !s) return;
    const many = T.runs.filter(x => x.shown).length > 1, label = many ? T.name(run.dir) : (more && more.label) || column.replaceAll('_', ' ');
    if (c) out.push({label: label, color: T.color(i), step: s.step, mean: c.mean, min: c.min, max: c.max, last: T.view.from == null && T.details[i] ? T.details[i].last[column] : null});
    (s.evals || []).forEach(function (e, k) { // of several sets, each by its name
      if (e[column] && more && more.evals) out.push({label: [many ? T.name(run.dir) : '', 'eval', s.evals.length > 1 ? T.show(e.set) : ''].filter(x => x).join(' '),
        color: T.color(many ? i : k + 1), step: e.step, mean: e[column].mean, points: true, set: many ? k : 0});
    });
  });
  return out;
}

function curve(column, format, more) {
  return function (host, r) {
    T.curve(host, {label: column.replaceAll('_', ' '), format, lines: lines(column, more), range: T.range(), marks: marks(r),
      ...more, plan: more && more.plan ? more.plan(r) : null});
  };
}

function perSecond(host, r) {
  curve('tokens_per_s', (x, d) => T.count(x, d), {label: 'tokens/s', linear: true, plan: planned, planLabel: 'planned', empty: 'no steps yet'})(host, r);
}

// The utilisation that the planned step would have: it grows as tokens per second do.
function plannedShare(r) {
  const speed = planned(r), share = speed && r.last.tokens_per_s > 0 ? r.last.mfu * speed / r.last.tokens_per_s : null;
  return share <= 1 ? share : null;
}

// Shares of right answers to multiple choice, of the set that has such.
function choices(host, r) {
  const e = T.series[T.current].evals.find(x => x.acc || x.acc_norm), of = (c, label, i) => e && e[c] ? [{label, color: T.color(i), step: e.step, mean: e[c].mean, points: true}] : [];
  T.curve(host, {label: 'multiple choice', format: T.percent, range: T.range(), linear: true, marks: marks(r), lines: [...of('acc', 'accuracy', 0), ...of('acc_norm', 'by length', 1)]});
}

// Where the time of a step goes: what waits for data, what waits for other ranks, the rest computes.
function anatomy(host, r) {
  const s = T.series[T.current];
  const of = (column, label, color) => s && s[column] ? [{label, color, step: s.step, mean: s[column].mean, min: s[column].min, max: s[column].max}] : [];
  const total = s && s.tokens && s.tokens_per_s ? [{label: 'step', color: T.color(0), step: s.step,
    mean: s.tokens.mean.map((t, i) => s.tokens_per_s.mean[i] > 0 ? t / s.tokens_per_s.mean[i] : null)}] : [];
  T.curve(host, {label: 'time of a step', format: T.seconds, range: T.range(), linear: true,
    plan: r.layout && r.layout.step_s > 0 ? r.layout.step_s : null, planLabel: 'planned step',
    lines: [...total, ...of('comm_exposed_s', 'waits for ranks', T.color(1)), ...of('data_wait_s', 'waits for data', T.color(3))]});
}

function heat(host) {
  const h = T.heatData;
  if (!h || !h.step.length) { host.append(T.el('p', {class: 'empty'}, 'nothing: --grad_norm_steps N writes them every N steps')); return; }
  T.heat(host, h.step, h.rows);
}

function memory(host, r) {
  if (!r.plans.length) { host.append(T.el('p', {class: 'empty'}, 'the run has not planned its memory yet')); return; }
  const names = [...new Set(r.plans.flatMap(p => p.arenas.filter(a => a.bytes > 0).map(a => a.name)))];
  const most = Math.max(...r.plans.map(p => Math.max(p.total_bytes, p.reserved_bytes))), held = (T.health && T.health.resident_bytes) || [];
  const rows = r.plans.map(p => [p.rank,
    T.el('div', {class: 'bar', role: 'img', 'aria-label': p.arenas.filter(a => a.bytes).map(a => T.show(a.name) + ' ' + T.bytes(a.bytes)).join(', ')},
      ...p.arenas.filter(a => a.bytes > 0).map(a => T.el('i', {title: T.show(a.name) + ' ' + T.bytes(a.bytes),
        css: {width: 100 * a.bytes / most + '%', background: T.color(names.indexOf(a.name))}}))),
    T.bytes(p.total_bytes), T.bytes(p.reserved_bytes), held[p.rank] ? T.bytes(held[p.rank]) : '\u2013']);
  host.append(T.table('', [['rank', 'n'], ['arenas', 'b'], ['planned', 'n'], ['reserved', 'n'], ['resident', 'n']], rows),
    T.el('ul', {class: 'legend'}, ...names.map((n, i) => T.el('li', {}, T.el('span', {class: 'key', css: {background: T.color(i)}}), T.show(n),
      T.el('b', {}, T.bytes((r.plans[0].arenas.find(a => a.name === n) || {}).bytes || 0))))));
}

function ranks(host, r) {
  const k = T.ranks;
  if (!k || !k.n) { host.append(T.el('p', {class: 'empty'}, 'no pages of ranks')); return; }
  const step = r.step_s || Math.max(...k.ranks.map(x => x.busy_s || 0));
  const rows = k.ranks.map(function (x) {
    const busy = step > 0 ? Math.min(1, (x.busy_s || 0) / step) : 0, slow = x.score > 1.15;
    return [x.rank, T.el('span', {class: 's-' + x.state}, x.state), T.whole(x.step),
      T.el('div', {class: 'bar', role: 'img', 'aria-label': 'busy ' + T.percent(busy)},
        T.el('i', {css: {width: 100 * busy + '%', background: slow ? 'var(--bad)' : 'var(--c2)'}})),
      T.seconds(x.busy_s), T.el('span', {class: slow ? 'bad' : null}, T.number(x.score, 3)), T.seconds(x.seconds),
      x.action + (x.site ? ', ' + T.show(x.site) : '') + (k.here ? '' : ' on ' + T.show(x.host))];
  });
  const slow = k.ranks.filter(x => x.score > 1.15).map(x => x.rank);
  host.append(T.el('p', {class: 'note'}, T.many(k.n, 'rank') + (k.n > k.ranks.length ? ', the first ' + k.ranks.length + ' of them' : '') +
    ', generation ' + k.generation + (slow.length ? '; stragglers: ' + slow.join(', ') : '') +
    (k.holder >= 0 && r.state !== 'paused' ? '; rank ' + k.holder + ' holds up the others' : '')),
    T.table('', [['rank', 'n'], ['state'], ['step', 'n'], ['busy of a step', 'b'], ['busy', 'n'], ['score', 'n'], ['for', 'n'], ['action']], rows));
}

function checkpoints(host, r) {
  const all = notes(r, 'checkpoint', 'checkpoint_skipped').reverse();
  if (!all.length) { host.append(T.el('p', {class: 'empty'}, 'none yet')); return; }
  host.append(T.table('', [['step', 'n'], ['written, UTC', 'n'], ['size', 'n'], ['write', 'n'], ['stall', 'n'], ['state']],
    all.map(c => [T.whole(c.step), T.clock(c.time), T.bytes(c.bytes), T.seconds(c.write_s), T.seconds(c.stall_s),
      c.event !== 'checkpoint' ? T.el('span', {class: 'warn'}, 'skipped') : T.el('span', {class: c.verified ? 'good' : 'warn'}, c.verified ? 'verified' : 'not verified')])));
}

function faults(host, r) {
  const again = restarts(r), all = notes(r, 'fault', 'no_gradient', 'start').filter(n => n.event !== 'start' || again.includes(n)).reverse();
  const slow = all.filter(isSlow).length, bad = all.length - slow - again.length;
  host.append(T.el('p', {class: 'note'}, (bad ? T.many(bad, 'fault') : 'no faults') + (again.length ? ', ' + T.many(again.length, 'restart') : '') +
    (slow ? ', ' + T.many(slow, 'slow action') : '') + (r.skipped_lines ? '; ' + T.many(r.skipped_lines, 'line') + ' of the log cannot be read' : '')));
  const row = f => f.event === 'start' ? ['\u2013', 'restart', 'goes on after step ' + T.whole(f.after_step - 1), 'resumed']
    : [f.rank == null || f.rank < 0 ? '\u2013' : f.rank, f.phase || f.event, f.cause || 'step ' + f.step, f.action === 'launch' ? 'the group ended' : f.action || ''];
  if (all.length) host.append(T.table('', [['when, UTC', 'n'], ['rank', 'n'], ['phase'], ['cause', 'w'], ['action']], all.map(f => [T.clock(f.time), ...row(f)])));
}

// What was asked of the run with `trireme ctl`.
function requests(host, r) {
  host.append(T.table('', [['when, UTC', 'n'], ['after step', 'n'], ['request', 'w'], ['answer', 'w']], notes(r, 'control').reverse().map(n => [T.clock(n.time), T.whole(n.step),
    n.action + (n.key ? ' ' + n.key + '=' + T.number(n.value) : ''), n.accepted ? T.el('span', {class: 'good'}, 'done') : T.el('span', {class: 'bad'}, 'refused: ' + T.show(n.why || ''))])));
}

function logs(host) {
  const l = T.logData;
  if (!l || !l.files.length) { host.append(T.el('p', {class: 'empty'}, 'no logs: a launcher writes them')); return; }
  const select = T.el('select', {'aria-label': 'log', onchange: e => T.pickLog(Number(e.target.value))},
    ...l.files.map((f, i) => T.el('option', {value: i, selected: i === l.which ? '' : null}, T.show(f))));
  const text = T.el('pre', {class: 'log', tabindex: 0}, T.show(l.text) || '(empty)');
  host.append(select, text);
  text.scrollTop = text.scrollHeight;
}

function configuration(host, r) {
  const options = r.config && r.config.options;
  if (!options) { host.append(T.el('p', {class: 'empty'}, 'the run does not say')); return; }
  const value = v => v == null ? '\u2013' : typeof v === 'object' ? JSON.stringify(v) : String(v);
  const others = T.configs.filter((c, i) => i !== T.current && c);
  const all = Object.entries(options).filter(([n, o]) => o && typeof o === 'object'), given = all.filter(([n, o]) => o.origin !== 'default');
  const origin = (n, text) => text === 'command line --' + n ? 'command line' : text; // the option itself is in the row
  const row = ([n, o]) => [n, value(o.value), origin(n, o.origin)];
  const differs = n => others.some(c => value((c[n] || {}).value) !== value(options[n].value));
  if (others.length) host.append(T.table('What differs between the runs', [['option'], ...T.runs.map(x => [T.name(x.dir), 'w'])],
    all.filter(([n]) => differs(n)).map(([n]) => [n, ...T.configs.map(c => c && c[n] ? value(c[n].value) : '\u2013')])));
  host.append(T.table('Given', [['option'], ['value', 'w'], ['origin', 'w']], given.map(row)),
    T.el('details', {}, T.el('summary', {}, 'all ' + T.many(all.length, 'option')), T.table('', [['option'], ['value', 'w'], ['origin', 'w']], all.map(row))));
}

function machine(host, r) {
  const h = T.health;
  if (!h) { host.append(T.el('p', {class: 'empty'}, 'not known')); return; }
  const bar = (used, all) => T.el('div', {class: 'bar', role: 'img', 'aria-label': T.percent(used / all) + ' used'},
    T.el('i', {css: {width: 100 * Math.min(1, used / all) + '%', background: used / all > 0.9 ? 'var(--bad)' : 'var(--c0)'}}));
  const rows = [];
  if (h.load) rows.push(['load', bar(h.load[0], h.cores), h.load.map(x => x.toFixed(2)).join(' ') + ' of ' + h.cores + ' cores']);
  if (h.memory_bytes) rows.push(['memory', bar(h.memory_bytes - h.memory_free_bytes, h.memory_bytes), T.bytes(h.memory_free_bytes) + ' of ' + T.bytes(h.memory_bytes) + ' free']);
  if (h.disk_bytes) rows.push(['disk', bar(h.disk_bytes - h.disk_free_bytes, h.disk_bytes), T.bytes(h.disk_free_bytes) + ' of ' + T.bytes(h.disk_bytes) + ' free']);
  host.append(T.table('host of this page: ' + T.show(h.host), [['what'], ['used', 'b'], ['free', 'n']], rows));
  sample(host, r.system);
}

// The last sample of the machine in the log, with the names and units of a reader; what has no row here comes as it is.
const perS = x => T.bytes(x) + '/s';
const measured = {cpu: ['processors busy', T.percent], process_cores: ['cores of the run', T.number], process_memory_bytes: ['memory of the run', T.bytes], memory_used: ['memory used', T.percent],
  memory_used_bytes: ['', T.bytes], disk_read_bytes_per_s: ['read from disks', perS], disk_written_bytes_per_s: ['written to disks', perS], disk_free_bytes: ['room on the disk', T.bytes],
  network_received_bytes: ['received', T.bytes], network_sent_bytes: ['sent', T.bytes]};
function sample(host, s) {
  if (!s) return;
  const rows = Object.entries(s).filter(([k, v]) => typeof v === 'number' && !['time', 'schema', 'interval_s'].includes(k)).map(function ([k, v]) {
    const m = measured[k] || [k, /bytes/.test(k) ? T.bytes : T.number];
    return [m[0], m[1](v)];
  });
  const gpus = T.list(s.gpus).map(g => [g.gpu, T.percent(g.utilization), T.bytes(g.memory_used_bytes) + ' of ' + T.bytes(g.memory_total_bytes),
    T.number(g.power_w, 3) + ' W', T.number(g.temperature_c, 3) + ' \u00b0C', T.number(g.clock_mhz, 4) + ' MHz']);
  if (gpus.length) host.append(T.table('GPUs, ' + T.when(s.time), [['GPU', 'n'], ['busy', 'n'], ['memory', 'n'], ['power', 'n'], ['heat', 'n'], ['clock', 'n']], gpus));
  host.append(T.table('host of rank 0, ' + T.when(s.time), [['what'], ['value', 'n']], rows.filter(x => x[0])));
}

function timeline(host, r) {
  const t = T.timelineData, end = s => s.reduce((m, x) => Math.max(m, x[1] + x[2]), 0);
  if (!t || !t.measured.length && !t.predicted.length) {
    host.append(T.el('p', {class: 'empty'}, 'nothing: --profile STEP measures a step, --machine NAME predicts one'));
    return;
  }
  const length = Math.max(end(t.measured), end(t.predicted)), seen = new Set();
  // one scale for both, unless one of them would be a dot on it
  const own = Math.min(end(t.measured), end(t.predicted)) * 4 < length;
  const draw = (title, spans, step) => spans.length ? T.spans(host, title + ', ' + T.seconds(end(spans)) + (step > 1.01 * end(spans) ? ' of a step of ' + T.seconds(step) : ''),
    spans, own ? end(spans) : length).forEach(k => seen.add(k)) : null;
  draw(r.layout && r.layout.pp > 1 ? 'predicted, a row a stage' : 'predicted', t.predicted, t.step_s); // a step has costs beside its actions
  draw('measured', t.measured);
  if (!t.predicted.length) host.append(T.el('p', {class: 'note'}, 'not predicted: --machine with a name of plan --machine list does'));
  if (!t.measured.length) host.append(T.el('p', {class: 'note'}, 'not measured: --profile STEP does'));
  host.append(T.spanLegend(seen));
}

// The first sample of the run as training sees it: trained tokens are coloured, a bar begins a document.
function data(host, r) {
  const d = r.data;
  if (!d) { host.append(T.el('p', {class: 'empty'}, 'the run has not shown its data')); return; }
  host.append(T.table('', [['source', 'w'], ['format'], ['tokens', 'n'], ['documents', 'n'], ['skipped', 'n']],
    T.list(d.sources).map(s => [s.path, s.format, T.whole(s.tokens), T.whole(s.documents), T.whole(s.skipped)])),
    T.el('p', {class: 'note'}, T.many(d.rows, 'row') + '; ' + T.percent(d.trained) + ' of the tokens are trained; ' + T.many(d.rows_without_target, 'row') + ' without a target; ' +
      (d.isolated ? 'documents do not see each other' : 'isolation not tested')));
  const s = d.sample;
  if (!s || !s.pieces) return;
  host.append(T.el('p', {class: 'note'}, 'sample ' + T.whole(s.id) + ': ' + T.many(s.tokens, 'token') + ' in ' + T.many(s.documents, 'document') + ', ' + T.whole(s.trained) + ' trained (coloured)'),
    T.el('div', {class: 'tokens', tabindex: 0, role: 'group', 'aria-label': 'sample'}, ...T.list(s.pieces).map(([what, text]) =>
      T.el('span', {class: [what & 1 ? 'on' : '', what & 2 ? 'doc' : ''].join(' '), title: what & 1 ? 'trained' : 'not trained'}, T.show(text)))));
}

// What the model makes of each prompt: the newest text first, older ones of the same prompt below it.
function samples(host, r) {
  const by = new Map();
  for (const s of r.samples.slice().reverse()) by.set(s.prompt, [...(by.get(s.prompt) || []), s]);
  const text = s => T.el('pre', {class: 'sample', tabindex: 0}, T.el('b', {}, T.show(s.prompt || '')), T.show(s.text || ''));
  const order = (a, b) => b[0].step - a[0].step || (a[0].index || 0) - (b[0].index || 0); // newest first, prompts as in their file
  for (const all of [...by.values()].sort(order).slice(0, 20))
    host.append(T.el('p', {class: 'note'}, 'step ' + T.whole(all[0].step)), text(all[0]), all.length < 2 ? '' : T.el('details', {},
      T.el('summary', {}, all.length - 1 + (all.length === 2 ? ' earlier text' : ' earlier texts') + ' of this prompt'),
      ...all.slice(1, 50).flatMap(s => [T.el('p', {class: 'note'}, 'step ' + T.whole(s.step)), text(s)])));
}

// Shares of rows that each expert got in the last step that says so; an expert at its fair share has half a bar.
function experts(host, r) {
  const e = r.experts, layers = T.list(e.layers).filter(l => Array.isArray(l.load) && l.load.length);
  const fair = l => 1 / l.load.length, most = l => Math.max(...l.load) / fair(l);
  const bars = l => T.el('div', {class: 'load', role: 'img', 'aria-label': 'layer ' + l.layer + ': loads from ' + T.number(Math.min(...l.load) / fair(l), 3) +
    ' to ' + T.number(most(l), 3) + ' of the fair share'}, ...l.load.map((x, i) => T.el('i', {title: 'expert ' + i + ': ' + T.percent(x),
    css: {height: Math.min(100, 50 * x / fair(l)) + '%', background: x > 2 * fair(l) ? 'var(--bad)' : x < fair(l) / 4 ? 'var(--c3)' : 'var(--c0)'}})));
  host.append(T.el('p', {class: 'note'}, 'step ' + T.whole(e.step) + '; ' + T.many(layers.length, 'layer') + '; the fair share is half a bar'),
    T.table('', [['layer', 'n'], ['load of each expert', 'b'], ['largest', 'n'], ['entropy', 'n'], ['rounds', 'n']],
      layers.map((l, i) => [l.layer == null ? i : l.layer, bars(l), T.number(most(l), 3) + ' \u00d7', T.number(l.entropy, 3), T.whole(l.rounds)])));
}

T.panels = [
  {id: 'loss', title: 'Loss', wide: true, draw: curve('loss', (x, d) => T.number(x, d || 5), {tall: true, evals: true, label: 'train', empty: 'no steps yet'})},
  {id: 'lr', title: 'Learning rate', draw: curve('lr', (x, d) => T.number(x, d || 3), {label: 'learning rate', axis: T.tenths, linear: true, exact: true, empty: 'no steps yet'})},
  {id: 'gnorm', title: 'Gradient norm', draw: curve('grad_norm', (x, d) => T.number(x, d || 4), {label: 'gradient norm', empty: 'no steps yet'})},
  {id: 'speed', title: 'Tokens per second', draw: perSecond},
  {id: 'mfu', title: 'Model flops utilisation', draw: curve('mfu', T.percent, {label: 'MFU', linear: true, plan: plannedShare, planLabel: 'planned', empty: 'the peak of the device is not known'})},
  {id: 'anatomy', title: 'Time of a step', draw: anatomy},
  {id: 'margin', title: 'Reward margin', draw: curve('rewards_margin', (x, d) => T.number(x, d || 4), {linear: true, evals: true, label: 'train'}), optional: () => T.series.some(s => s && s.rewards_margin)},
  {id: 'accuracy', title: 'Reward accuracy', draw: curve('rewards_accuracy', T.percent, {linear: true, evals: true, label: 'train'}), optional: () => T.series.some(s => s && s.rewards_accuracy)},
  {id: 'choices', title: 'Multiple choice', draw: choices, optional: () => ((T.series[T.current] || {}).evals || []).some(e => e.acc || e.acc_norm)},
  {id: 'scale', title: 'Loss scale', draw: curve('loss_scale', T.whole, {linear: true, exact: true}), optional: () => T.series.some(s => s && s.loss_scale)},
  {id: 'memory', title: 'Memory by arena', draw: memory},
  {id: 'heat', title: 'Gradient norm by layer', draw: heat, wide: true},
  {id: 'ranks', title: 'Ranks', draw: ranks, wide: true},
  {id: 'timeline', title: 'Timeline of a step', draw: timeline, wide: true},
  {id: 'data', title: 'Data', draw: data},
  {id: 'experts', title: 'Load of the experts', draw: experts, optional: () => !!(T.details[T.current] || {}).experts},
  {id: 'checkpoints', title: 'Checkpoints', draw: checkpoints},
  {id: 'faults', title: 'Faults and restarts', draw: faults},
  {id: 'requests', title: 'Requests', draw: requests, optional: () => (T.details[T.current] || {notes: []}).notes.some(n => n.event === 'control')},
  {id: 'machine', title: 'Machine', draw: machine},
  {id: 'samples', title: 'Generated samples', draw: samples, wide: true, optional: () => (T.details[T.current] || {samples: []}).samples.length > 0},
  {id: 'logs', title: 'Logs', draw: logs, wide: true},
  {id: 'config', title: 'Configuration', draw: configuration, wide: true},
];
}
