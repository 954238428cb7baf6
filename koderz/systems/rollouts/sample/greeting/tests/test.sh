#!/bin/bash
# One reward: whether each name is greeted.
if [ "$(cat greeting.txt)" = "$(printf 'Hello, Ada!\nHello, Grace!')" ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
