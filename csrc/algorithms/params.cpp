#include "algorithms/params.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "core/error.h"

namespace pycoll {

namespace {

const std::string* find(const BuildRequest& request, std::string_view name) {
  const auto found = request.params.find(std::string(name));
  return found == request.params.end() ? nullptr : &found->second;
}

[[noreturn]] void refuse(std::string_view name, const std::string& value, const std::string& rule) {
  throw InvalidArgument("parameter '" + std::string(name) + "' must be " + rule + ", not '" + value + "'");
}

template <class Number>
Number read(const BuildRequest& request, std::string_view name, Number otherwise, Number least, Number most,
            const char* kind) {
  const std::string* text = find(request, name);
  if (!text) return otherwise;
  Number value{};
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error == std::errc() && end == text->data() + text->size() && value >= least && value <= most)
    return value;
  std::ostringstream rule;
  rule << kind << " between " << least << " and " << most;
  refuse(name, *text, rule.str());
}

}  // namespace

int integer_param(const BuildRequest& request, std::string_view name, int otherwise, int least, int most) {
  return read(request, name, otherwise, least, most, "a whole number");
}

double number_param(const BuildRequest& request, std::string_view name, double otherwise, double least,
                    double most) {
  return read(request, name, otherwise, least, most, "a number");
}

std::vector<int> integers_param(const BuildRequest& request, std::string_view name,
                                const std::vector<int>& otherwise, int least, int most) {
  const std::string* text = find(request, name);
  if (!text) return otherwise;
  std::vector<int> values;
  std::string_view rest = *text;
  if (rest.size() >= 2 && rest.front() == '[' && rest.back() == ']') rest = rest.substr(1, rest.size() - 2);
  while (true) {
    while (rest.starts_with(' ')) rest.remove_prefix(1);
    int value{};
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (error != std::errc() || value < least || value > most) break;
    values.push_back(value);
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    if (rest.empty()) return values;
    if (!rest.starts_with(',')) break;
    rest.remove_prefix(1);
  }
  refuse(name, *text,
         "whole numbers between " + std::to_string(least) + " and " + std::to_string(most) +
             " with commas between them");
}

std::string choice_param(const BuildRequest& request, std::string_view name,
                         const std::vector<std::string>& choices) {
  const std::string* text = find(request, name);
  if (!text) return choices.front();
  if (std::ranges::find(choices, *text) != choices.end()) return *text;
  std::string rule = "one of";
  for (const std::string& choice : choices) rule += " '" + choice + "'";
  refuse(name, *text, rule);
}

}  // namespace pycoll
