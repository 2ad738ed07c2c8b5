// Carries the fat binaries (SASS for sm_90 and sm_100, PTX for what comes later) in read-only data.
#include "shim/device/cuda/sum_image.h"

#define TIDE_IMAGE(NAME, FILE)  \
  asm(".section .rodata\n"      \
      ".balign 64\n"            \
      ".hidden " NAME           \
      "\n"                      \
      ".global " NAME "\n" NAME \
      ":\n"                     \
      ".incbin \"" FILE         \
      "\"\n"                    \
      ".previous\n")

TIDE_IMAGE("tide_sum_image", TIDE_SUM_FATBIN);
TIDE_IMAGE("tide_multicast_sum_image", TIDE_MULTICAST_SUM_FATBIN);
