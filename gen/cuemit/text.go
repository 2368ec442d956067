package cuemit

import (
	"slices"
	"strconv"
	"strings"
)

// literal writes text as a C++ string literal. A question mark is escaped, so
// that no compiler reads a trigraph, and so is what is not ASCII.
func literal(text string) string {
	return strings.ReplaceAll(strconv.QuoteToASCII(text), "?", `\?`)
}

// taken are package names that C++, a compiler's preprocessor or the headers keep
// for themselves.
var taken = strings.Fields(`
	alignas alignof and and_eq asm auto bitand bitor bool break case catch char
	char8_t char16_t char32_t class co_await co_return co_yield compl concept const
	const_cast consteval constexpr constinit continue decltype default delete do
	double dynamic_cast else enum errno explicit export extern false float for friend
	goto if inline int linux long mutable namespace new noexcept not not_eq nullptr
	operator or or_eq private protected public register reinterpret_cast requires
	restrict return shardgen short signed sizeof static static_assert static_cast
	struct switch template this thread_local throw true try typedef typeid typename
	typeof union unix unsigned using virtual void volatile wchar_t while xor xor_eq`)

// namespace returns the C++ namespace of a package. It is inside another, so
// that only what C++ keeps everywhere is in a package's way: that gets a suffix.
func namespace(packageName string) string {
	if slices.Contains(taken, packageName) {
		packageName += "_"
	}
	return "shardgen::models::" + packageName
}
