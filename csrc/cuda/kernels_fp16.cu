#include "cuda/dispatch.cuh"

namespace flashbertscore::cuda {

void match_fp16(const Problem& problem, const Choice& choice, bool aligned, const Device& device,
                Stream stream) {
    launch_match<Float16>(problem, choice, aligned, device, stream);
}

void norms_fp16(const Side& side, int dim, index_t rows, bool padded, bool aligned,
                const Device& device, Stream stream) {
    launch_norms<Float16>(side, dim, rows, padded, aligned, device, stream);
}

} // namespace flashbertscore::cuda
