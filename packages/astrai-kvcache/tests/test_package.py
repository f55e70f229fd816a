import re
import subprocess
import sys
from importlib.metadata import requires

import astrai_kvcache


def test_torch_is_the_only_dependency():
    lines = requires("astrai-kvcache")
    names, extras = (
        [re.match(r"[\w.-]+", line)[0] for line in lines if ("extra ==" in line) is wanted]
        for wanted in (False, True)
    )
    assert names == ["torch"]
    assert extras == ["numpy", "safetensors"]


def test_importing_it_imports_no_other_package_of_ours():
    code = "import sys, astrai_kvcache.testing; print(*{m.split('.')[0] for m in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert {name for name in done.stdout.split() if name.startswith("astrai")} == {"astrai_kvcache"}


def test_all_public_names_are_exported_in_order():
    modules = {"allocator", "binding", "errors", "events", "free_runs", "kv_cache", "layout"}
    modules |= {"pool", "prefix_cache", "req_to_token", "shared_pages", "staging", "storage"}
    modules |= {"task_pages", "testing", "workspace", "sized_lru", "tiers"}
    modules |= {"bound_step", "disk_tier", "host_binding", "host_tier", "offload"}
    public = {name for name in vars(astrai_kvcache) if not name.startswith("_")} - modules
    assert astrai_kvcache.__all__ == sorted(public)
