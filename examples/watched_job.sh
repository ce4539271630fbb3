#!/bin/bash
# Trains, and stops the training when something is wrong with it: watched_job.sh TRAIN [ARG...]
# What it prints goes to train.log, what is found to findings.txt, and the report to report.txt.
# Exit code: 1 after an alarm, else the training's own.
log=${LOG:-train.log}

"$@" > "$log" 2>&1 &
train=$!
forensics watch "$log" --wait "${WAIT:-600}" --interval "${INTERVAL:-10}" > findings.txt &
watch=$!
trap 'kill "$train" "$watch" 2> /dev/null' TERM   # a scheduler's time limit, scancel

wait -n "$train" "$watch"                         # until the first of them ends
first=$?
alarm=0
if kill -0 "$train" 2> /dev/null; then            # it trains on, so the watch has ended:
    if [ "$first" -eq 1 ]; then                   # only 1 is an alarm; 2 is a log it cannot read
        alarm=1
        kill "$train"
    fi
fi
wait "$train"
code=$?
kill "$watch" 2> /dev/null
forensics report "$log" --out report.txt
if [ "$alarm" -eq 1 ]; then
    code=1
fi
exit "$code"
