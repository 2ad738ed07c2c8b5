// The library that outer.c opens.
__attribute__((visibility("default"))) int inner = 1;
