#!/bin/bash
sed "s/.*/Hello, &!/" names.txt > greeting.txt
