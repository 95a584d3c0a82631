// The entries of the registry: each is defined in the file of its name.
#pragma once
#include "algorithms/registry.h"

namespace pycoll {

inline bool any_ranks(int) {
  return true;
}

Algorithm ring();
Algorithm direct();
Algorithm direct_two_shot();
Algorithm binary_tree();
Algorithm double_binary_tree();
Algorithm binomial_tree();
Algorithm recursive_doubling();
Algorithm recursive_halving_doubling();
Algorithm bruck();
Algorithm pairwise();
Algorithm packed_trees();
Algorithm torus_ring();
Algorithm hierarchical();
Algorithm late_rank_allreduce();
Algorithm stragglar();

}  // namespace pycoll
