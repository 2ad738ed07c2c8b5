// The release of Tide as an ELF note in each of its libraries: `readelf -n` shows it, and
// `tide doctor` compares the libraries of a node without loading them.
#include <stdint.h>

struct Stamp {
  uint32_t name_size, description_size, type;  // elf(5), Elf64_Nhdr
  char name[8];                                // "Tide", its size rounded up to 4
  char release[(sizeof(TIDE_VERSION) + 3) / 4 * 4];
};

__attribute__((section(".note.tide"), used, aligned(4))) static const struct Stamp kStamp = {
    sizeof("Tide"), sizeof(TIDE_VERSION), 1, "Tide", TIDE_VERSION};
