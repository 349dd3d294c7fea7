#include "cuda/dispatch.cuh"

namespace flashbertscore::cuda {

void match_bf16(const Problem& problem, const Choice& choice, bool aligned, const Device& device,
                Stream stream) {
    launch_match<Bfloat16>(problem, choice, aligned, device, stream);
}

void norms_bf16(const Side& side, int dim, index_t rows, bool padded, bool aligned,
                const Device& device, Stream stream) {
    launch_norms<Bfloat16>(side, dim, rows, padded, aligned, device, stream);
}

} // namespace flashbertscore::cuda
