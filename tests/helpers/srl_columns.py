"""A document with semantic roles in the columns of CoNLL-2012."""

from __future__ import annotations

CONLL_2012 = """#begin document (nw/demo/00/demo_0001); part 000
nw/demo/00/demo_0001 0 0 Mira  NNP  (TOP(S(NP*) -   -  - spk1 (PERSON) (ARG0*) (3)
nw/demo/00/demo_0001 0 1 fixed VBD  (VP*        fix 01 1 spk1 *        (V*)    -
nw/demo/00/demo_0001 0 2 her   PRP$ (NP*        -   -  - spk1 *        (ARG1*  (4|(3)
nw/demo/00/demo_0001 0 3 bike  NN   *))         -   -  - spk1 *        *)      4)
nw/demo/00/demo_0001 0 4 .     .    *))         -   -  - spk1 *        *       -

nw/demo/00/demo_0001 0 0 Yes   UH   (TOP(S*))   -   -  - spk1 *        -
#end document
"""
