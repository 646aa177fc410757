"""LoRA on a frozen backbone: clients train and send small adapters (extra `peft`), and the run keeps the backbone once.

pip install "coterie[peft]"
python examples/lora.py
"""

import peft
import torch

import coterie as ct

clients = ct.data.load("heart-disease")
torch.manual_seed(0)
assert isinstance(clients.train.inputs, torch.Tensor)  # and no dict of inputs by name
width = clients.train.inputs.shape[1]
backbone = torch.nn.Sequential(
    torch.nn.Linear(width, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)
)  # yours: pretrained
settings = peft.LoraConfig(r=4, target_modules=["0"], modules_to_save=["2"])
model = peft.get_peft_model(backbone, settings)

run = ct.fit(ct.MeritFed(targets="all"), clients, model, rounds=5)
adapter, whole = run.state_dict("hungary", trained_only=True), run.state_dict("hungary")
print(
    f"{sum(v.numel() for v in adapter.values())} of {sum(v.numel() for v in whole.values())} numbers travel"
)
model.load_state_dict(adapter, strict=False)  # what Hungary uses
