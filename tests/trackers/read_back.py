#!/usr/bin/env python3
"""read_back.py RUN - do the real packages read what a run's trackers hold, value for value?

--plain reads with plain.py instead, as CI does. Else it needs promtool (Debian: prometheus), tensorboard, trackio, prometheus_client, and protobuf with wandb's message classes (any wandb package; its Python
reader of .wandb files, wandb.sdk.internal.datastore, is used where the version still has one). trackio is looked for in RUN/trackio, so train with TRACKIO_DIR=RUN/trackio. With --kill N --trireme BINARY it also starts runs, kills them at
random bytes of what a tracker writes (kill_at.c), and reads what is left; each is then resumed and compared again.
"""
import argparse, glob, json, os, random, shutil, signal, sqlite3, struct, subprocess, sys

import plain

RENAMED = {("step", "lr"): "train/learning_rate", ("step", "tokens_per_s"): "perf/tokens_per_second", ("step", "mfu"): "perf/mfu",
           ("step", "data_wait_s"): "perf/data_wait", ("step", "comm_exposed_s"): "perf/comm_exposed",
           ("end", "seconds"): "train/train_runtime"}
PREFIX = {"step": "train", "eval": "eval", "checkpoint": "checkpoint", "end": "end"}
SKIPPED = {"time", "schema", "step", "samples", "samples_left_out", "part", "parts"}


def wanted(run):
    """{(name, step): value} of the log, and the last system sample."""
    out, step = {}, 0
    for line in open(f"{run}/events.jsonl"):
        try:
            e = json.loads(line)
        except ValueError:
            continue
        kind = e["event"]
        if kind in ("step", "eval", "grad_norms"):
            step = e["step"]
        own = e.get("step", step)  # of a checkpoint it may be an earlier one
        if kind == "grad_norms":
            out.update({(f"grad_norm/{k}", own): v for k, v in e["norms"].items() if v is not None})
        if kind in PREFIX:
            for k, v in e.items():
                if k not in SKIPPED and isinstance(v, (int, float)) and not isinstance(v, bool):
                    name = f"{e['set']}_{k}" if "set" in e else k
                    out[RENAMED.get((kind, k), f"{PREFIX[kind]}/{name}"), own] = v
    return out


def tensorboard(run, complete):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    out = {}
    for d in glob.glob(f"{run}/runs/*"):
        acc = EventAccumulator(d, size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
        acc.Reload()
        for tag in acc.Tags()["scalars"]:
            for x in acc.Scalars(tag):
                assert (tag, x.step) not in out or tag.startswith(("memory/", "end/", "system/", "train/train_runtime")), f"tensorboard has {tag} at {x.step} twice"
                out[tag, x.step] = x.value
        for tag in acc.Tags()["histograms"]:
            for x in acc.Histograms(tag):
                h = x.histogram_value
                assert abs(sum(h.bucket) - h.num) < 1e-9 and h.min <= h.max, (tag, x.step)
        names = acc.Tags()["tensors"]
        assert not complete or "_hparams_/session_start_info" in names, names
    return out


def wandb_records(path):
    """Records of a .wandb file: with wandb's own reader where it has one, else by its published format."""
    try:
        from wandb.sdk.internal.datastore import DataStore
        store = DataStore()
        store.open_for_scan(path)
        while True:
            try:
                data = store.scan_data()
            except AssertionError:  # a torn record at the end
                return
            if data is None:
                return
            yield data
    except ImportError:
        yield from plain.wandb_records(path)


def wandb(run, complete):
    """In a process of its own where WANDB_PACKAGES names a directory: an old wandb wants an old protobuf."""
    if os.environ.get("WANDB_PACKAGES"):
        env = dict(os.environ, PYTHONPATH=os.environ["WANDB_PACKAGES"], WANDB_PACKAGES="")
        done = subprocess.run([sys.executable, __file__, run, "--dump-wandb"], env=env, stdout=subprocess.PIPE, check=True)
        return {(k, s): v for k, s, v in json.loads(done.stdout)}
    from wandb.proto import wandb_internal_pb2 as pb
    out, last = {}, -1
    files = glob.glob(f"{run}/wandb/offline-run-*/run-*.wandb")
    assert len(files) <= 1, files
    for f in files:
        kinds = []
        for data in wandb_records(f):
            r = pb.Record()
            r.ParseFromString(data)
            kinds.append(r.WhichOneof("record_type"))
            assert r.num == len(kinds), "record numbers"
            if kinds[-1] == "history":
                items = {i.nested_key[0] if i.nested_key else i.key: json.loads(i.value_json) for i in r.history.item}
                assert items["_step"] == r.history.step.num > last, f"wandb has row {r.history.step.num} behind row {last}"
                last = r.history.step.num
                plain.add_row(out, items)
        assert kinds[:2] == ["header", "run"][:len(kinds)], kinds[:2]
    return out


def trackio(run, complete):
    os.environ["TRACKIO_DIR"] = os.path.abspath(f"{run}/trackio")
    import importlib
    from trackio import utils, sqlite_storage
    importlib.reload(utils)
    importlib.reload(sqlite_storage)
    storage, out = sqlite_storage.SQLiteStorage, {}
    for name in storage.get_runs("huggingface"):
        name = name["name"] if isinstance(name, dict) else name
        for row in storage.get_logs("huggingface", name):
            step = row["step"]
            for k, v in row.items():
                if isinstance(v, (int, float)) and k != "step":
                    assert (k, step) not in out or k.startswith(("memory/", "end/", "train/train_runtime")), f"trackio has {k} at {step} twice"
                    out[k, step] = v
    return out


def compare(name, want, got, digits32):
    as32 = lambda x: struct.unpack("f", struct.pack("f", x))[0]
    bad = [(k, v, got.get(k)) for k, v in want.items() if got.get(k) != (as32(v) if digits32 else v)]
    extra = [k for k in got if k not in want and k[0].startswith(("train/loss", "eval/", "perf/")) and k[0] != "train/global_step"]
    if bad or extra:
        sys.exit(f"{name}: {len(bad)} of {len(want)} values differ, {len(extra)} are too many: {bad[:3]} {extra[:3]}")
    print(f"{name}: {len(want)} values equal{' after rounding to float32' if digits32 else ''}")


def prometheus_samples(run, is_plain):
    text = open(f"{run}/metrics.prom").read()
    if is_plain:
        return plain.prometheus(text)
    from prometheus_client.parser import text_string_to_metric_families as parse
    labels = lambda s: "{" + ",".join(f'{k}="{v}"' for k, v in s.labels.items()) + "}" if s.labels else ""
    return {s.name + labels(s): s.value for f in parse(text) for s in f.samples}


def of_sets(run):
    """{sample: value} of the last evaluation of every named set."""
    out = {}
    for e in map(json.loads, open(f"{run}/events.jsonl")):
        if "set" in e:
            out.update({f'trireme_eval_{k.replace("/", "_")}{{set="{e["set"]}"}}': v for k, v in e.items()
                        if k not in SKIPPED and isinstance(v, (int, float)) and not isinstance(v, bool)})
    return out


def prometheus(run, want, is_plain):
    text, got = open(f"{run}/metrics.prom").read(), prometheus_samples(run, is_plain)
    last = {}
    for (k, step), v in want.items():
        last[k] = v
    wrong = {k: (v, got.get(k)) for k, v in of_sets(run).items() if got.get(k) != v}
    if wrong:
        sys.exit(f"prometheus: of evaluation data with names: {wrong}")
    pairs = {"train/loss": "trireme_train_loss", "train/grad_norm": "trireme_grad_norm", "train/learning_rate": "trireme_learning_rate",
             "eval/loss": "trireme_eval_loss", "perf/tokens_per_second": "trireme_tokens_per_second", "checkpoint/bytes": "trireme_checkpoint_bytes"}
    for k, n in pairs.items():
        if k in last and got.get(n) != last[k]:
            sys.exit(f"prometheus: {n} is {got.get(n)}, {k} is {last[k]}")
    tokens = sum(v for (k, s), v in want.items() if k == "train/tokens")
    assert got["trireme_tokens_total"] == tokens, (got["trireme_tokens_total"], tokens)
    if not is_plain:
        subprocess.run(["promtool", "check", "metrics"], input=text.encode(), check=True)
    print(f"prometheus: {len(got)} samples read, {len(pairs)} compared, counters exact")


def read_all(run, complete=True, is_plain=False):
    want = wanted(run)
    own = plain if is_plain else sys.modules[__name__]
    readers = (("tensorboard", own.tensorboard, True), ("wandb", own.wandb, False), ("trackio", own.trackio, False))
    for name, read, is32 in readers:
        got = read(run, complete)
        if complete:
            compare(name, want, got, is32)
    if complete:
        prometheus(run, want, is_plain)


def train(args, out, env={}):
    env = dict(os.environ, TRACKIO_DIR=os.path.abspath(f"{out}/trackio"), WANDB_DIR="", **env)
    return subprocess.Popen([args.trireme, "train", "--model", args.model, "--data", args.data, "--eval_data", args.data, "--output", out,
                             "--sequence_length", "32", "--per_device_train_batch_size", "2", "--max_steps", "300", "--eval_steps", "20",
                             "--save_steps", "40", "--async_save", "on", "--grad_norm_steps", "10", "--report_to", "all", "--metrics_file", f"{out}/metrics.prom",
                             "--quiet", "--threads", "1", "--resume_from_checkpoint", "auto"], env=env, stdout=subprocess.DEVNULL)


def forget_others(out):
    """A run that was killed before its first checkpoint is not resumed: the next start is another run, with another id."""
    ids = [json.loads(line)["run"] for line in open(f"{out}/events.jsonl") if line.endswith("}\n")]
    for d in glob.glob(f"{out}/wandb/*"):
        if ids and not d.endswith(ids[-1][:8]):
            shutil.rmtree(d)
    for f in glob.glob(f"{out}/trackio/*.db"):
        with sqlite3.connect(f) as db:
            tables = [t for (t,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for t in {"metrics", "configs", "system_metrics", "alerts"} & set(tables) if ids else ():
                db.execute(f"DELETE FROM {t} WHERE run_id NOT IN (SELECT run_id FROM {t} WHERE run_id LIKE ?)", (ids[-1][:8] + "%",))
        db.close()


def read_killed(out, is_plain):
    """The files of a killed run are read; a .wandb file that was cut inside its magic bytes holds nothing to read."""
    if not os.path.exists(f"{out}/events.jsonl"):  # killed before it had one
        return
    for f in glob.glob(f"{out}/wandb/*/*.wandb"):
        if os.path.getsize(f) < 7:
            os.unlink(f)
    forget_others(out)
    read_all(out, complete=False, is_plain=is_plain)
    if os.path.exists(f"{out}/metrics.prom"):  # replaced as a whole: never half of one
        assert prometheus_samples(out, is_plain)["trireme_steps_planned"] == 300


# A part of the path of each tracker's files: SQLite's journal is counted with its file, .prom with its temporary name.
FILES = {"tensorboard": "tfevents", "wandb": ".wandb", "trackio": ".db", "prometheus": ".prom"}


def start(args, out, tracker, library, at=None):
    """A run whose bytes for a tracker are counted, and which ends at byte `at` of them."""
    return train(args, out, env={"LD_PRELOAD": library, "TR_KILL_IN": FILES[tracker], **({} if at is None else {"TR_KILL_AT": str(at)}),
                                 "TR_KILL_COUNT": os.path.abspath(f"{args.run}/count")})


def campaign(args):
    """Kills at a random byte of what a tracker writes, the trackers in turn. Of every two kills the first hits a new run, the second its resume;
    the packages read after each; then the run ends, is read again and compared."""
    rng, turn, out, library = random.Random(args.seed), 0, f"{args.run}/killed", os.path.abspath(f"{args.run}/kill_at.so")
    os.makedirs(args.run, exist_ok=True)
    subprocess.run([os.environ.get("CC", "cc"), "-O1", "-shared", "-fPIC", "-o", library, os.path.dirname(os.path.abspath(__file__)) + "/kill_at.c", "-ldl"], check=True)
    n_bytes, n_kills = {}, dict.fromkeys(FILES, 0)
    for tracker in FILES:
        shutil.rmtree(out, ignore_errors=True)
        assert start(args, out, tracker, library).wait() == 0
        n_bytes[tracker] = int(open(f"{args.run}/count").read())
        assert n_bytes[tracker] > 1000, (tracker, n_bytes)
    while sum(n_kills.values()) < args.kill:
        tracker, turn = list(FILES)[turn % len(FILES)], turn + 1
        shutil.rmtree(out, ignore_errors=True)
        for _ in range(2):
            killed = start(args, out, tracker, library, rng.randrange(n_bytes[tracker])).wait() == -signal.SIGKILL
            n_kills[tracker] += killed  # a resumed run may write less than that
            read_killed(out, args.plain)
        assert train(args, out).wait() == 0
        forget_others(out)
        read_all(out, is_plain=args.plain)
        print(f"{sum(n_kills.values())} kills at a byte of {n_kills}: files read after each, equal to the log after the resume", flush=True)
    shutil.rmtree(out)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("run")
    p.add_argument("--kill", type=int, default=0)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--trireme")
    p.add_argument("--model")
    p.add_argument("--data")
    p.add_argument("--plain", action="store_true")
    p.add_argument("--torn", action="store_true", help="the run was killed: reading is all that is asked")
    p.add_argument("--dump-wandb", action="store_true", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.dump_wandb:
        return print(json.dumps([(k, s, v) for (k, s), v in wandb(args.run, False).items()]))
    campaign(args) if args.kill else read_all(args.run, not args.torn, args.plain)


if __name__ == "__main__":
    main()
