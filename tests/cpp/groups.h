// The groups of kernel_test: what each shows stands at its definition.
#pragma once

namespace flashbertscore::test {

// matches_groups.cpp: alignments
void matches_tour();
void matches_edges();
void matches_cases();
void matches_chunks();
void matches_scales();

// gradient_groups.cpp: the backward pass
void gradient_tour();
void gradient_edges();
void gradient_cases();
void gradient_scales();

} // namespace flashbertscore::test
