// Marks the functions that make up the library's C interface.
#pragma once

#define ASTRAI_EXPORT extern "C" __attribute__((visibility("default")))
