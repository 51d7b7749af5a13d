#!/usr/bin/env python3
"""The examples for schedulers against the types that their projects publish: VENV/bin/python check_manifests.py

Kubernetes, JobSet and Kubeflow by PyPI's kubeflow-trainer-api (made from the OpenAPI of all three), SkyPilot and dstack by their own packages:
what a type does not have, or has in another form, is named. Volcano publishes no types; tests/cli/test_schedulers.sh has its keys.
Needs: pip install kubeflow-trainer-api pyyaml jsonschema; skypilot and dstack where they are.
"""
import glob, os, sys
import yaml
import kubeflow_trainer_api.models as types

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples")
KINDS = {("v1", "Service"): types.IoK8sApiCoreV1Service, ("batch/v1", "Job"): types.IoK8sApiBatchV1Job,
         ("jobset.x-k8s.io/v1alpha2", "JobSet"): types.JobsetV1alpha2JobSet,
         ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime"): types.TrainerV1alpha1ClusterTrainingRuntime,
         ("trainer.kubeflow.org/v1alpha1", "TrainJob"): types.TrainerV1alpha1TrainJob}
wrong = []


def compare(want, got, where):
    """What a type does not know is missing in what it gives back."""
    if isinstance(want, dict) and isinstance(got, dict):
        for key in want:
            if key not in got:
                wrong.append(f"{where}.{key} is no key of it")
            else:
                compare(want[key], got[key], f"{where}.{key}")
    elif isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        for i, (w, g) in enumerate(zip(want, got)):
            compare(w, g, f"{where}[{i}]")
    elif want != got:
        wrong.append(f"{where} is {got!r} there")


def plain(value):
    """A type's value as the file would hold it; quantities and numbers-or-names are wrapped."""
    if hasattr(value, "actual_instance"):
        return value.actual_instance
    if hasattr(value, "model_fields_set"):
        fields = type(value).model_fields
        return {fields[n].alias or n: plain(getattr(value, n)) for n in value.model_fields_set if n in fields}
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list) else value


def kubernetes(doc, where):
    kind = KINDS.get((doc["apiVersion"], doc["kind"]))
    if not kind:
        return print(f"{where}: {doc['apiVersion']} {doc['kind']}: no published type")
    try:
        compare(doc, plain(kind.from_dict(doc)), doc["kind"])
    except Exception as e:
        wrong.append(f"{where}: {e}")
    print(f"{where}: {kind.__name__}")


def skypilot(path):
    import jsonschema
    from sky.utils import schemas

    for e in jsonschema.Draft7Validator(schemas.get_task_schema()).iter_errors(yaml.safe_load(open(path))):
        wrong.append(f"{path}: {e.message}")


def dstack(path):
    from dstack._internal.core.models.configurations import parse_apply_configuration

    parse_apply_configuration(yaml.safe_load(open(path)))


for path in sorted(glob.glob(f"{EXAMPLES}/kubernetes/*.yaml")):
    for doc in yaml.safe_load_all(open(path)):
        kubernetes(doc, os.path.basename(path))
for check, path in (skypilot, "skypilot/train.yaml"), (dstack, "dstack/train.dstack.yml"):
    try:
        check(os.path.join(EXAMPLES, path))
        print(f"{path}: {check.__name__}")
    except ImportError as e:
        print(f"{path}: not checked: {e}")
    except Exception as e:
        wrong.append(f"{path}: {e}")
print("\n".join(wrong) or "nothing is wrong")
sys.exit(bool(wrong))
