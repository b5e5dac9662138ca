"""What would go wrong without a word with some library works, or is refused with the reason: see symptoms.py."""

import ast
from pathlib import Path

import pytest
from training import call

for library in ("torch", "accelerate", "pytorch_lightning", "torchdata"):
    pytest.importorskip(library)

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SOURCE = Path(__file__).with_name("symptoms.py").read_text()
SYMPTOMS = [
    one.name
    for one in ast.parse(SOURCE).body
    if isinstance(one, ast.FunctionDef) and [argument.arg for argument in one.args.args] == ["root", "folder"]
]


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_symptom(symptom: str, root: Path, tmp_path: Path) -> None:
    call("symptoms", symptom, root, tmp_path)
