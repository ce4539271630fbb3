import sys
import textwrap
from importlib.metadata import EntryPoint

import pytest
import torch
from torch import nn

from forensics.errors import InputError, UsageError
from forensics.record import recipe_lookup
from forensics.record.config import Config
from forensics.record.recipe import FunctionRecipe, Recipe, Training, recipe
from forensics.record.recipe_lookup import (
    find_recipe,
    load_file,
    recipes_of,
    registered_recipes,
    split_reference,
)
from forensics.record.recorder import Recorder

OWN = """
    from torch import nn, optim
    from forensics.record.healthy import HealthyMlp
    from forensics.record.recipe import Recipe, Training, recipe

    @recipe("named", "its line")
    def function(config):
        model = nn.Linear(2, 1)
        loss = lambda model, batch: model(batch).mean()
        return Training(model, optim.SGD(model.parameters(), 0.1), loss, batch=batches)

    def batches(step):
        return [[step]]

    @recipe("classy")
    class Classy(HealthyMlp):
        pass

    class Bare(Recipe):
        pass

    def plain(config):
        return function.function(config)
"""


@pytest.fixture
def own(tmp_path):
    """A user's file of recipes."""
    file = tmp_path / "my_train.py"
    file.write_text(textwrap.dedent(OWN))
    return file


def training(**given):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return Training(model, optimizer, lambda model, batch: model(batch).mean(), **given)


# -- writing one ---------------------------------------------------------------------------


def test_a_lone_optimizer_and_scheduler_become_lists():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    made = Training(nn.Linear(1, 1), optimizer, lambda m, b: b, scheduler)
    assert made.optimizers == [optimizer]
    assert made.schedulers == [scheduler]


def test_a_function_is_a_recipe():
    made = training(batch=lambda step: torch.full((3, 2), float(step)))
    defaults = Config(steps=7)

    @recipe("f", "a line", defaults=defaults)
    def f(config):
        """Docs."""
        return made

    assert issubclass(f, FunctionRecipe)
    assert (f.name, f.summary, f.defaults, f.__doc__) == ("f", "a line", defaults, "Docs.")
    instance = f()
    assert instance.config is defaults
    assert instance.build(instance.config) is made
    (only,) = instance.micro_batches(4)
    assert only.tolist() == [[4.0, 4.0]] * 3


def test_a_list_is_micro_batches_and_anything_else_is_one():
    for given, expected in ([[1, 2], [1, 2]], [(1, 2), [(1, 2)]], [{"x": 1}, [{"x": 1}]]):
        made = training(batch=lambda step, given=given: given)
        instance = recipe("f")(lambda config, made=made: made)()
        instance.build(instance.config)
        assert instance.micro_batches(0) == expected

        @recipe("c")
        class Mine(Recipe):
            def batch(self, step, given=given):
                return given

        assert Mine().micro_batches(0) == expected


IMAGES, LABELS = torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)


@pytest.mark.parametrize("given", [[IMAGES, LABELS], [IMAGES, IMAGES, IMAGES[:, 0]]])
def test_one_batch_as_a_loader_gives_it_is_not_taken_for_micro_batches(given):
    class Mine(Recipe):
        def batch(self, step):
            return given

    what = rf"batch\(\): gave a list of {len(given)} tensors, .* make one batch a tuple"
    with pytest.raises(UsageError, match=what):
        Mine().micro_batches(0)
    Mine.step = lambda *_: None  # its own loop takes them as it likes
    assert Mine().micro_batches(0) is given


@pytest.mark.parametrize("given", [[IMAGES, IMAGES[:2]], [(IMAGES, LABELS)], [IMAGES], []])
def test_micro_batches_that_are_alike_stay(given):
    class Mine(Recipe):
        def batch(self, step):
            return given

    assert Mine().micro_batches(0) is given


def test_micro_batches_may_be_yielded():
    @recipe("c")
    class Mine(Recipe):
        def batch(self, step):
            yield from ((step, 1), (step, 2))

    assert Mine().micro_batches(7) == [(7, 1), (7, 2)]


@pytest.mark.parametrize("returned", [None, "training"])
def test_a_function_must_return_a_training_with_data(returned):
    instance = recipe("f")(lambda config: training() if returned else None)()
    with pytest.raises(TypeError, match="recipe f must return a Training with its batch"):
        instance.build(instance.config)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "../a", "a:b", "-a"])
def test_a_name_must_do_for_a_folder(name):
    with pytest.raises(ValueError, match="cannot name a recipe"):
        recipe(name)


def test_select_reaches_into_any_batch():
    x, y = torch.arange(6).reshape(3, 2), torch.arange(3)
    picked = Recipe().select({"x": x, "pair": (y, [y, "text"])}, [2, 0])
    assert picked["x"].tolist() == [[4, 5], [0, 1]]
    assert picked["pair"][0].tolist() == [2, 0]
    assert picked["pair"][1][0].tolist() == [2, 0]
    assert picked["pair"][1][1] == "text"


# -- finding one ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "path", "name"),
    [
        ("healthy-mlp", None, "healthy-mlp"),
        ("a/b.py:c", "a/b.py", "c"),
        ("b.py", "b.py", ""),
        ("C:/x/b.py:c", "C:/x/b.py", "c"),
        ("C:/x/b.py", "C:/x/b.py", ""),
    ],
)
def test_a_reference_is_a_name_or_a_file(reference, path, name):
    found_path, found_name = split_reference(reference)
    assert (found_path and found_path.as_posix(), found_name) == (path, name)


def test_ours_are_registered():
    recipes, broken = registered_recipes()
    assert broken == []
    assert find_recipe("healthy-fp32") is recipes["healthy-fp32"]
    assert all(entry.summary for entry in recipes.values())


def test_an_unknown_name_says_the_nearest():
    with pytest.raises(UsageError, match="did you mean healthy-fp16"):
        find_recipe("healthy-fp61")


def test_a_name_a_function_and_a_class_of_a_file(own):
    for name in ("named", "function"):
        assert find_recipe(f"{own}:{name}").summary == "its line"
    assert find_recipe(f"{own}:classy").name == "classy"
    assert find_recipe(f"{own}:plain").name == "plain"
    assert find_recipe(f"{own}:Bare").name == "Bare"


def test_what_a_file_imports_is_not_its_own(own):
    assert sorted(recipes_of(str(own))) == ["classy", "named"]


def test_a_file_of_several_needs_a_name(own):
    with pytest.raises(UsageError, match=r"holds 2 recipes; add one of :classy, :named"):
        find_recipe(str(own))


def test_a_file_of_one_needs_none(tmp_path):
    file = tmp_path / "one.py"
    file.write_text("from forensics.record.recipe import recipe\none = recipe('x')(lambda c: c)\n")
    assert find_recipe(str(file)).name == "x"


def test_a_file_leaves_the_import_path_alone(own, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    before, modules = list(sys.path), set(sys.modules)
    load_file(own)
    assert sys.path == before
    (new,) = {name for name in sys.modules if name not in modules}
    assert new.startswith("_forensics_recipe_")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("\nimport no_such_module_\n", "ModuleNotFoundError at line 2 .* not on the import path"),
        ("x = (\n", "SyntaxError at line 1"),
        ("raise SystemExit(3)\n", "SystemExit at line 1 when loaded: 3"),
        ("def f():\n    1 / 0\nf()\n", "ZeroDivisionError at line 2"),
        ("x = 1\n", "no recipe is called 'r'; register one with @recipe"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_clear_line(tmp_path, content, what):
    file = tmp_path / "bad.py"
    file.write_text(content)
    modules = set(sys.modules)
    with pytest.raises((InputError, UsageError), match=what) as raised:
        find_recipe(f"{file}:r")
    assert str(file) in raised.value.line()
    if "raises" in raised.value.line():
        assert set(sys.modules) == modules


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        find_recipe(f"{tmp_path / 'none.py'}:r")


TRAINS = """
    import sys
    from torch import nn, optim
    from forensics import Recorder, recipe

    ARGUMENTS = list(sys.argv)
    model = nn.Linear(2, 1)

    def main():
        Recorder(sys.argv[-1], model, optim.SGD(model.parameters(), 0.1)).close()

    @recipe("r")
    def r(config):
        raise NotImplementedError

    {start}
"""


@pytest.mark.parametrize("start", ["main()", 'if __name__ == "__main__":\n        main()'])
def test_a_file_does_not_train_while_it_is_read(tmp_path, monkeypatch, start):
    monkeypatch.chdir(tmp_path)
    given = ["forensics", "bisect", "runs/x"]
    monkeypatch.setattr(sys, "argv", given)
    file = tmp_path / "train.py"
    file.write_text(textwrap.dedent(TRAINS.format(start=start)))
    if start == "main()":
        with pytest.raises(UsageError, match="trains while it is being read") as raised:
            find_recipe("train.py:r")
        assert raised.value.where == "train.py"
        assert 'under if __name__ == "__main__":' in raised.value.line().replace("'", '"')
    else:
        assert find_recipe("train.py:r").name == "r"
        assert [str(file)] == load_file(file).ARGUMENTS
    assert sys.argv is given
    assert [path for path in tmp_path.iterdir() if path.name != "__pycache__"] == [file]
    Recorder(tmp_path / "mine", nn.Linear(1, 1), None).close()  # nothing is refused afterwards
    assert (tmp_path / "mine" / "run.json").exists()


def test_a_broken_package_hides_no_recipe_and_is_told(monkeypatch):
    points = [
        EntryPoint("broken", "no_such_package_:RECIPES", recipe_lookup.GROUP),
        EntryPoint("healthy", "forensics.record.healthy:RECIPES", recipe_lookup.GROUP),
    ]
    monkeypatch.setattr(recipe_lookup, "entry_points", lambda group: points)
    assert find_recipe("healthy-mlp").name == "healthy-mlp"
    recipes, broken = registered_recipes()
    assert "healthy-mlp" in recipes
    assert len(broken) == 1
    assert "no_such_package_" in broken[0]
    with pytest.raises(UsageError, match="no_such_package_"):
        find_recipe("theirs")


def test_no_package_shadows_our_names(monkeypatch, tmp_path):
    (tmp_path / "stranger_.py").write_text(
        "from forensics.record.recipe import recipe\nr = recipe('healthy-mlp')(lambda c: c)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    points = [
        EntryPoint("stranger", "stranger_", recipe_lookup.GROUP),
        EntryPoint("healthy", "forensics.record.healthy:RECIPES", recipe_lookup.GROUP),
    ]
    monkeypatch.setattr(recipe_lookup, "entry_points", lambda group: points)
    assert find_recipe("healthy-mlp").__module__ == "forensics.record.healthy"
    assert registered_recipes()[0]["healthy-mlp"].__module__ == "forensics.record.healthy"
