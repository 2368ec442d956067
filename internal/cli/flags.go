package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// options are the values of all flags. A command reads those that it lists.
type options struct {
	out        string
	cuda       string
	format     string
	worlds     []int64
	rank       *int64
	headerOnly bool
	verbose    bool
	json       bool
	help       bool
}

// The values of --cuda. Without the flag it is auto.
const (
	cudaAuto    = "auto"    // CUDA source is written, and compiled if there is an nvcc
	cudaOff     = "off"     // none
	cudaRequire = "require" // as auto, but not without compiled kernels
)

// flag is a named option. A command may say more exactly what it means there.
type flag struct {
	name  string
	value string // what help calls the value; empty for a flag without one
	usage string
	set   func(o *options, value string) error
}

// taken is a flag that a command has.
type taken struct {
	name     string
	value    string // in place of the flag's own
	usage    string // in place of the flag's own
	required bool
}

// flag returns the flag as it is in the command.
func (t taken) flag() flag {
	f, err := findFlag(t.name)
	if err != nil {
		panic(err) // the tables of this package contradict each other
	}
	return flag{f.name, cmp.Or(t.value, f.value), cmp.Or(t.usage, f.usage), f.set}
}

var allFlags = []flag{
	{"out", "PATH", "where to write", func(o *options, v string) error {
		return setText(&o.out, v)
	}},
	{"cuda", "auto|off|require", "whether CUDA kernels are made too (default auto)", func(o *options, v string) error {
		return setChoice(&o.cuda, v, cudaAuto, cudaOff, cudaRequire)
	}},
	{"format", "table|json", "how the plan is printed (default table)", func(o *options, v string) error {
		return setChoice(&o.format, v, "table", "json")
	}},
	{"world", "N", "world size, the number of ranks", func(o *options, v string) error {
		return setWorlds(&o.worlds, v)
	}},
	{"rank", "R", "adds what rank R owns, counted from 0", func(o *options, v string) error {
		return setRank(&o.rank, v)
	}},
	{"header-only", "", "safetensors files may end behind their header", setBool(func(o *options) *bool { return &o.headerOnly })},
	{"verbose", "", "prints a line for each file", setBool(func(o *options) *bool { return &o.verbose })},
	{"json", "", "prints faults as JSON on standard error", setBool(func(o *options) *bool { return &o.json })},
	{"help", "", "prints this help", setBool(func(o *options) *bool { return &o.help })},
}

func setText(to *string, value string) error {
	if value == "" {
		return fmt.Errorf("expected a value, got none")
	}
	*to = value
	return nil
}

func setChoice(to *string, value string, choices ...string) error {
	if !slices.Contains(choices, value) {
		return fmt.Errorf("expected %s, got %q%s", strings.Join(choices, ", "), value, didYouMean(value, choices))
	}
	*to = value
	return nil
}

func setWorlds(to *[]int64, value string) error {
	for text := range strings.SplitSeq(value, ",") {
		n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		if err != nil || n < 1 {
			return fmt.Errorf("expected a world size of at least 1, got %q", text)
		}
		*to = append(*to, n)
	}
	return nil
}

func setRank(to **int64, value string) error {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < 0 {
		return fmt.Errorf("expected a rank of at least 0, got %q", value)
	}
	*to = &n
	return nil
}

func setBool(field func(*options) *bool) func(*options, string) error {
	return func(o *options, value string) error {
		v, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("expected true or false, got %q", value)
		}
		*field(o) = v
		return nil
	}
}

// parse splits args into command, arguments and flags, which may stand in any
// order; behind -- there are arguments only.
func (c *call) parse(args []string) error {
	words, given, err := c.split(args)
	if err != nil {
		return err
	}
	if err := c.choose(words); err != nil {
		return err
	}
	if err := c.checkFlags(given); err != nil || c.options.help {
		return err
	}
	return c.checkArgs()
}

// split sets the options and returns what is no flag, and the flags' names.
func (c *call) split(args []string) (words, given []string, err error) {
	// Even the message on a wrong flag is to be JSON if that is asked for.
	c.options.json = slices.Contains(args, "--json") || slices.Contains(args, "-json")
	for len(args) > 0 {
		word := args[0]
		args = args[1:]
		if word == "--" {
			return append(words, args...), given, nil
		}
		if len(word) < 2 || word[0] != '-' {
			words = append(words, word)
			continue
		}
		name, value, has := strings.Cut(strings.TrimPrefix(word[1:], "-"), "=")
		f, err := findFlag(name)
		if err != nil {
			return nil, nil, c.orHelp(words, err)
		}
		switch {
		case has:
		case f.value == "":
			value = "true"
		case len(args) == 0 || isFlag(args[0]):
			return nil, nil, c.orHelp(words, usageErrorf("flag --%s needs a value: --%s %s", f.name, f.name, f.value))
		default:
			value, args = args[0], args[1:]
		}
		if slices.Contains(given, f.name) {
			return nil, nil, c.orHelp(words, usageErrorf("flag --%s is given twice", f.name))
		}
		given = append(given, f.name)
		if err := f.set(&c.options, value); err != nil {
			return nil, nil, c.orHelp(words, usageErrorf("flag --%s: %v", f.name, err))
		}
	}
	return words, given, nil
}

// orHelp adds to a wrong usage the usage of the command that was meant.
func (c *call) orHelp(words []string, err error) error {
	if len(words) > 0 {
		c.command = findCommand(words[0])
	}
	return c.withUsage(err)
}

// isFlag tells a flag from an argument; -1 is a number.
func isFlag(word string) bool {
	return len(word) > 1 && word[0] == '-' && (word[1] < '0' || word[1] > '9')
}

func findFlag(name string) (*flag, error) {
	if name == "h" {
		name = "help"
	}
	names := make([]string, len(allFlags))
	for i := range allFlags {
		if allFlags[i].name == name {
			return &allFlags[i], nil
		}
		names[i] = "--" + allFlags[i].name
	}
	return nil, usageErrorf("unknown flag --%s%s", name, didYouMean("--"+name, names))
}

// choose takes the command from the words and leaves its arguments.
func (c *call) choose(words []string) error {
	switch {
	case len(words) == 0 && c.options.help:
		words = []string{"help"}
		c.options.help = false
	case len(words) == 0:
		return c.withUsage(usageErrorf("no command given"))
	}
	c.command, c.args = findCommand(words[0]), words[1:]
	if c.command == nil {
		return c.withUsage(usageErrorf("unknown command %q%s", words[0], didYouMean(words[0], commandNames())))
	}
	return nil
}

func (cmd *command) takes(flag string) bool {
	return slices.ContainsFunc(cmd.flags, func(t taken) bool { return t.name == flag })
}

func (c *call) checkFlags(given []string) error {
	for _, name := range given {
		if name != "help" && !c.command.takes(name) {
			return c.withUsage(usageErrorf("%s has no flag --%s", c.command.name, name))
		}
	}
	return nil
}

func (c *call) checkArgs() error {
	n := len(c.args)
	switch {
	case slices.Contains(c.args, ""):
		return c.withUsage(usageErrorf("%s: an argument is empty", c.command.name))
	case n < c.command.minimum:
		return c.withUsage(usageErrorf("%s needs %s", c.command.name, c.command.args))
	case c.command.maximum >= 0 && n > c.command.maximum:
		return c.withUsage(usageErrorf("%s takes no further argument %q", c.command.name, c.args[c.command.maximum]))
	}
	return nil
}
