// An algorithm's own parameters, which come as text.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "algorithms/registry.h"

namespace pycoll {

// The parameter's value, `otherwise` where it is not given. InvalidArgument for what is no number of the kind
// or is not in [least, most].
int integer_param(const BuildRequest& request, std::string_view name, int otherwise, int least, int most);
double number_param(const BuildRequest& request, std::string_view name, double otherwise, double least,
                    double most);

// Whole numbers with commas between them, "3,5"; brackets around them are let pass.
std::vector<int> integers_param(const BuildRequest& request, std::string_view name,
                                const std::vector<int>& otherwise, int least, int most);

// One of `choices`, the first where it is not given.
std::string choice_param(const BuildRequest& request, std::string_view name,
                         const std::vector<std::string>& choices);

}  // namespace pycoll
