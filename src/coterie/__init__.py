"""coterie: federated learning among partners who are not alike.

`import coterie as ct` needs torch and numpy; each public name is imported when it is first used, so that the command answers at once.
"""

__version__ = "0.2.0"

_PUBLIC: dict[str, str] = {
    "attacks": "coterie.attacks",
    "BF16": "coterie.filters.bf16:BF16",
    "data": "coterie.data",
    "Int8": "coterie.filters.int8:Int8",
    "metrics": "coterie.compute.metrics",
    "models": "coterie.models",
    "report": "coterie.report",
    "solvers": "coterie.solvers",
    "testing": "coterie.testing",
    "theory": "coterie.theory",
    "appraise": "coterie.study.appraise:appraise",
    "Attack": "coterie.contract.attack:Attack",
    "Callback": "coterie.run.callbacks:Callback",
    "ClassShareSampler": "coterie.samplers.pj_is:ClassShareSampler",
    "Client": "coterie.base.clients:Client",
    "Clients": "coterie.base.clients:Clients",
    "Clip": "coterie.filters.clip:Clip",
    "Cohort": "coterie.compute.cohort:Cohort",
    "combine": "coterie.study.compare:combine",
    "compare": "coterie.study.compare:compare",
    "Comparison": "coterie.study.compare:Comparison",
    "Contribution": "coterie.config.run:Contribution",
    "ErrorFeedback": "coterie.contract.filters:ErrorFeedback",
    "Evaluation": "coterie.config.run:Evaluation",
    "CoterieError": "coterie.base.errors:CoterieError",
    "EarlyStopping": "coterie.run.callbacks:EarlyStopping",
    "EngineSpec": "coterie.contract.engine:EngineSpec",
    "Epochs": "coterie.config.local:Epochs",
    "Federation": "coterie.contract.federation:Federation",
    "Filter": "coterie.contract.filters:Filter",
    "fit": "coterie.run.fit:fit",
    "Form": "coterie.contract.task:Form",
    "Gap": "coterie.contract.task:Gap",
    "GaussianNoise": "coterie.filters.gaussian_noise:GaussianNoise",
    "Gradient": "coterie.contract.task:Gradient",
    "GradientNormSampler": "coterie.samplers.isfedavg:GradientNormSampler",
    "Hazards": "coterie.base.heads:Hazards",
    "InProcess": "coterie.engines.inprocess:InProcess",
    "InputError": "coterie.base.errors:InputError",
    "LabelForm": "coterie.base.label_form:LabelForm",
    "Layout": "coterie.base.vector:Layout",
    "LipschitzSampler": "coterie.samplers.isfl:LipschitzSampler",
    "LocalSGD": "coterie.config.local:LocalSGD",
    "Method": "coterie.contract.method:Method",
    "Metrics": "coterie.run.callbacks:Metrics",
    "MLflow": "coterie.run.trackers.mlflow:MLflow",
    "move": "coterie.base.vector:move",
    "options": "coterie.config.schema:options",
    "Ordered": "coterie.base.heads:Ordered",
    "OwnModel": "coterie.contract.task:OwnModel",
    "Part": "coterie.base.rows:Part",
    "Passage": "coterie.contract.filters:Passage",
    "PerClient": "coterie.contract.wire:PerClient",
    "Personal": "coterie.compute.personal:Personal",
    "personalise": "coterie.run.personalise:personalise",
    "Quadratic": "coterie.compute.step_hooks:Quadratic",
    "Ray": "coterie.engines.ray_settings:Ray",
    "register": "coterie.config.registry:register",
    "Rng": "coterie.base.rng:Rng",
    "RowNoise": "coterie.config.row_noise:RowNoise",
    "Run": "coterie.run.result:Run",
    "RunError": "coterie.base.errors:RunError",
    "RunSettings": "coterie.config.run:RunSettings",
    "Sampler": "coterie.contract.method:Sampler",
    "Schedule": "coterie.config.local:Schedule",
    "SecureSums": "coterie.config.secure:SecureSums",
    "StudySettings": "coterie.config.run:StudySettings",
    "Step": "coterie.compute.step_hooks:Step",
    "Steps": "coterie.config.local:Steps",
    "task": "coterie.contract.task:task",
    "TensorBoard": "coterie.run.trackers.tensorboard:TensorBoard",
    "TopK": "coterie.filters.top_k:TopK",
    "UniformClassSampler": "coterie.samplers.uniform_is:UniformClassSampler",
    "Update": "coterie.contract.task:Update",
    "WandB": "coterie.run.trackers.wandb:WandB",
    "wire_type": "coterie.config.schema:wire_type",
}
"""Public names, each with its module and its name there (`coterie.run.fit:fit`), or a module; methods are added from their registry.

`python docs/stub.py` writes them into `__init__.pyi` for type checkers.
"""


def _places() -> dict[str, str]:
    from coterie.config.registry import METHODS

    return _PUBLIC | {
        place.partition(":")[2]: place for place in METHODS.places.values()
    }


def __getattr__(name: str) -> object:
    import importlib
    import sys

    if name == "__all__":
        return __dir__()
    place = None if name.startswith("__") else _PUBLIC.get(name) or _places().get(name)
    if place is None:
        raise AttributeError(
            f"module 'coterie' has no attribute {name!r}{_cure(name)}",
            name=name,
            obj=sys.modules[__name__],
        )
    module, _, attribute = place.partition(":")
    value: object = importlib.import_module(module)
    globals()[name] = value = getattr(value, attribute) if attribute else value
    return value


_CURES = {
    "krum": "MultiKrum(keep=1)",
    "fedmedian": "Median()",
    "fedtrimmedavg": "TrimmedMean()",
}
"""What other libraries call a method, in lower case, and what to write."""


def _cure(name: str) -> str:
    if name.casefold() in _CURES:
        return f"; write ct.{_CURES[name.casefold()]}"
    if name in ("FederatedClassifier", "FederatedRegressor"):
        return f"; write: from coterie.sklearn import {name}"
    match = next(
        (
            public_name
            for public_name in __dir__()
            if public_name.casefold() == name.casefold()
        ),
        None,
    )
    return f"; did you mean {match!r}?" if match else ""


def __dir__() -> list[str]:
    return sorted({*_places(), "__version__"})
