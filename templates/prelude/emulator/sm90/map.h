// Functions of isa_map that gfx942 has in its isa layer.
#pragma once
#include "isa.h"

FMHAGEN_MODEL u32 wave_uniform(u32 value) {
  return emulator::warp_exchange("wave_uniform", 0, value)[0];
}
