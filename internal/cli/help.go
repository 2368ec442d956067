package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// help prints the help of the command of the call.
func (c *call) help() error {
	c.stdout.Write([]byte(c.command.help()))
	return c.stdout.err()
}

// runHelp prints the list of commands, or the help of one.
func runHelp(c *call) error {
	if len(c.args) == 0 {
		c.stdout.Write([]byte(overview()))
		return nil
	}
	about := findCommand(c.args[0])
	if about == nil {
		return usageErrorf("unknown command %q%s", c.args[0], didYouMean(c.args[0], commandNames()))
	}
	c.stdout.Write([]byte(about.help()))
	return nil
}

// overview lists the commands.
func overview() string {
	var b strings.Builder
	b.WriteString("shardgen turns the YAML description of a model into a Go package in which every\n" +
		"shard offset is a constant.\n\nusage: shardgen COMMAND [ARGUMENT...] [FLAG...]\n\n")
	rows := make([][2]string, 0, len(commands()))
	for _, c := range commands() {
		rows = append(rows, [2]string{c.name, c.summary})
	}
	writeColumns(&b, rows)
	b.WriteString("\nshardgen help COMMAND tells more. Start with: shardgen init NAME\n")
	return b.String()
}

// help returns the command's help: usage, what it does, flags, an example.
func (cmd *command) help() string {
	var b strings.Builder
	b.WriteString(cmd.usage() + "\n" + capitalised(cmd.summary) + ".\n")
	if cmd.detail != "" {
		b.WriteString("\n" + cmd.detail + "\n")
	}
	b.WriteString("\nflags:\n")
	rows := [][2]string{}
	for _, t := range append(slices.Clone(cmd.flags), taken{name: "help"}) {
		f := t.flag()
		rows = append(rows, [2]string{f.form(), f.usage})
	}
	writeColumns(&b, rows)
	b.WriteString("\nexample:\n  " + strings.ReplaceAll(cmd.example, "\n", "\n  ") + "\n")
	return b.String()
}

// usage returns the line that shows arguments and flags.
func (cmd *command) usage() string {
	words := []string{"usage: shardgen", cmd.name}
	if cmd.args != "" {
		words = append(words, cmd.args)
	}
	for _, t := range cmd.flags {
		if form := t.flag().form(); t.required {
			words = append(words, form)
		} else {
			words = append(words, "["+form+"]")
		}
	}
	return strings.Join(words, " ") + "\n"
}

// form is how the flag is written.
func (f flag) form() string { return strings.TrimSpace("--" + f.name + " " + f.value) }

// withUsage adds to a wrong usage the usage line of the call's command, or
// where to find the commands.
func (c *call) withUsage(err error) error {
	var wrong *usageError
	if !errors.As(err, &wrong) {
		return err
	}
	wrong.usage = "run \"shardgen help\" for the list of commands\n"
	if c.command != nil {
		wrong.usage = c.command.usage()
	}
	return wrong
}

// writeColumns writes two columns, indented, the second lined up.
func writeColumns(b *strings.Builder, rows [][2]string) {
	width := 0
	for _, row := range rows {
		width = max(width, len(row[0]))
	}
	for _, row := range rows {
		fmt.Fprintf(b, "  %-*s  %s\n", width, row[0], row[1])
	}
}

func capitalised(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
