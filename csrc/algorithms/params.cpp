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
