// Cheapest spanning trees of a complete graph, costs in a row-major n x n matrix.
#pragma once
#include <vector>

namespace pycoll {

// Prim's algorithm on costs of u -> v plus v -> u; of equally cheap edges, the one that leaves the tree
// shallower from `start`. Parents towards `start`, whose own is -1.
std::vector<int> cheapest_tree(const std::vector<double>& cost, int n, int start);

// Chu and Liu (1965), Edmonds (1967): the cheapest tree of edges parent -> child from `root`.
std::vector<int> cheapest_arborescence(const std::vector<double>& cost, int n, int root);

// The same tree with its centre as the root: the least height.
std::vector<int> rooted_at_centre(const std::vector<int>& parent, int& root);

int height_of(const std::vector<int>& parent);

}  // namespace pycoll
