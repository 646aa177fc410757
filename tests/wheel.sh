#!/usr/bin/env bash
# Build the wheel, install it with no sight of the checkout, and run it from an empty folder.
set -euo pipefail
project=$1 python=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m build --wheel --outdir "$folder/dist" "$project" >"$folder/build.log" 2>&1 || { cat "$folder/build.log"; exit 1; }
"$python" -m venv "$folder/venv"
wheel=$(ls "$folder"/dist/*.whl)
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check -c "$project/constraints.txt" "$wheel"
"$folder/venv/bin/pip" check
mkdir "$folder/empty"
cd "$folder/empty"
# The core alone: no extra is installed yet.
"$folder/venv/bin/python" - <<'PY'
import torch
import coterie as ct
x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
clients = ct.Clients([ct.Client(n, ct.Part(x, (x[:, 0] > 0).long()), test=ct.Part(x, (x[:, 0] > 0).long())) for n in "ab"])
run = ct.fit(ct.FedAvg(), clients, ct.models.Logistic(), rounds=5)
assert run.history.select("accuracy", "a", "test")[-1][1] > 0.9
PY
"$folder/venv/bin/coterie" compare heart-disease --seeds 1 --rounds 5 --methods local,fedavg --out bare >table 2>progress || { cat table progress; exit 1; }
grep -q Switzerland table && test -s bare/report.html || { cat table; exit 1; }
if "$folder/venv/bin/coterie" compare digits --seeds 1 --rounds 1 --methods fedavg --out digits >table 2>progress || ! grep -q 'coterie\[data\]' progress; then
  echo "a missing extra must be named:"; cat table progress; exit 1
fi
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check -c "$project/constraints.txt" "$wheel[data,report]"
"$folder/venv/bin/pip" check
"$folder/venv/bin/coterie" compare heart-disease --seeds 1 --rounds 5 --methods local,fedavg --out run >table 2>progress || { cat table progress; exit 1; }
test -s run/report.html
# Six tasks of new users, written from the built pages alone.
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check -c "$project/constraints.txt" "$wheel[plot,varsel]" mypy
cp "$project"/examples/tasks/* .
for task in dirichlet_notebook own_method varsel_by_hand personal_layers films; do
  "$folder/venv/bin/python" $task.py >table || { echo "task $task:"; cat table; exit 1; }
done
test -s accuracy.svg
"$folder/venv/bin/mypy" --strict own_method.py personal_layers.py films.py
PATH="$folder/venv/bin:$PATH" bash csv_to_verdict.sh >table 2>progress || { echo "task csv_to_verdict:"; cat table progress; exit 1; }
grep -Eq '(Join|Probably join|Safe to join|Stay alone|Undecided)' table && grep -q 'prediction' table || { cat table; exit 1; }
# The first Python of the README, as it is printed.
awk '/^```python$/ {if (!seen++) {inside=1; next}} /^```$/ {inside=0} inside' "$project/README.md" >readme.py
test -s readme.py
"$folder/venv/bin/python" readme.py >table || { cat table; exit 1; }
echo "the wheel works from an empty folder"
