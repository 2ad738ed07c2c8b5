// Carries the fat binary (SASS for sm_90 and sm_100, PTX for what comes later) in read-only data.
#include "shim/device/cuda/sum_image.h"

asm(".section .rodata\n"
    ".balign 64\n"
    ".hidden tide_sum_image\n"
    ".global tide_sum_image\n"
    "tide_sum_image:\n"
    ".incbin \"" TIDE_SUM_FATBIN
    "\"\n"
    ".previous\n");
