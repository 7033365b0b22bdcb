"""Has vLLM find out about its model classes while an image is made.

What it finds out (can the class be split, does it read images, …) it keeps in
$VLLM_CACHE_ROOT/modelinfos, one small JSON file for each class with the hash of
its source. Where that is missing, the first start in each pod imports vLLM once
more, in a process of its own, to ask: nine seconds, and a second process's
memory. The shim copies these files into the pod.

    VLLM_CACHE_ROOT=/opt/thaw/vllm python3 modelinfos.py                 # all classes
    VLLM_CACHE_ROOT=/opt/thaw/vllm python3 modelinfos.py LlamaForCausalLM
"""

import os
import sys
from pathlib import Path


def main(wanted):
    if not os.environ.get("VLLM_CACHE_ROOT"):
        sys.exit("VLLM_CACHE_ROOT says not where")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    from vllm.model_executor.models import registry

    models = registry.ModelRegistry.models
    unknown = [name for name in wanted if name not in models]
    if unknown:
        sys.exit(f"this vLLM has no class {unknown[0]}")
    done, left = 0, []
    for name in wanted or sorted(models):
        model = models[name]
        if not isinstance(model, registry._LazyRegisteredModel):
            continue
        try:
            # What inspect_model_cls does, but in this process: an image is made
            # without a GPU, and one import serves all classes.
            path = Path(registry.__file__).parent / f"{model.module_name.split('.')[-1]}.py"
            if not path.exists():
                continue  # found out at the start, as ever
            info = registry._ModelInfo.from_model_cls(model.load_model_cls())
            model._save_modelinfo_to_cache(info, model._get_modelinfo_module_hash(path))
            done += 1
        except Exception as e:  # a class whose libraries are not in the image
            left.append(f"{name}: {e}".splitlines()[0][:200])
    # vLLM writes them for its own user alone, and a pod's is another.
    for file in (Path(os.environ["VLLM_CACHE_ROOT"]) / "modelinfos").glob("*.json"):
        file.chmod(0o644)
    for line in left:
        print("left out", line, file=sys.stderr)
    print(f"{done} model classes in {os.environ['VLLM_CACHE_ROOT']}/modelinfos, {len(left)} left out")
    if done == 0:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
