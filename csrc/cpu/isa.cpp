#include "cpu/isa.h"

#include <cstring>

namespace flashbertscore {

namespace {
const Isa* const kTable[] = {
#ifdef FLASHBERTSCORE_X86
    &kAvx512bf16, &kAvx512, &kAvx2,
#endif
    &kGeneric, &kScalar};
} // namespace

const Isa* const* isas() { return kTable; }

index_t isa_count() { return static_cast<index_t>(sizeof kTable / sizeof kTable[0]); }

const Isa* find_isa(const char* name) {
    for (const Isa* isa : kTable) {
        if (std::strcmp(isa->name, name) == 0) { return isa; }
    }
    return nullptr;
}

const Isa& best_isa() {
    for (const Isa* isa : kTable) {
        if (isa->supported()) { return *isa; }
    }
    return kScalar;
}

} // namespace flashbertscore
