# An analyst's task: a folder of CSV files to a verdict, and from there to a model that predicts new patients.
set -euo pipefail
coterie data heart-disease --export hospitals
coterie check hospitals --label num || true # it asks what a cholesterol of 0 means; the next command says so
coterie compare hospitals --label num --set data.above=0 \
  --set 'data.missing.chol=[0]' --set 'data.missing.trestbps=[0]' \
  --methods local,fedavg --seeds 1 --rounds 10 --out decision
coterie finalise decision --client cleveland --out cleveland-model
head -4 hospitals/cleveland.csv >new.csv
coterie predict cleveland-model new.csv
