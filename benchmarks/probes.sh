#!/usr/bin/env bash
# What the layers know, all that stands in results/probes.md: benchmarks/probes.sh DATA OUT [MODEL]
#
# DATA holds ud-english-ewt/ (CoNLL-U) and wsd/ (semcor, senseval2, senseval3, semeval2007, sense-inventory.tsv.xz).
# A call that was killed goes on where it was; vectors and sense means stay in OUT, to be deleted.
set -euo pipefail
data=$(realpath "$1") out=$2 model=${3:-en-mini}
mkdir -p "$out"
cd "$out"
elmokit=${ELMOKIT:-elmokit}
ewt=$data/ud-english-ewt

for tags in upos xpos; do
    for format in --json ""; do
        $elmokit probe pos "$ewt"/en_ewt-ud-train.conllu.xz "$ewt"/en_ewt-ud-dev.conllu --model "$model" \
            --tags $tags --seeds 3 --control --vectors ewt --overwrite --figure pos-$tags $format >pos-$tags.${format:+json}
    done
done
