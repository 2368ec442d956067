package cli

// commands returns all commands in the order of help.
func commands() []*command {
	return append(specCommands(), helpCommands()...)
}

// specCommands are those that work on specs.
func specCommands() []*command {
	return []*command{
		{
			name: "init", args: "NAME", minimum: 1, maximum: 1, run: runInit,
			flags:   []taken{{name: "json"}},
			summary: "writes NAME/model.yaml, a first spec with comments",
			detail: "NAME becomes the model's name and, in lower-case letters and digits, that of the\n" +
				"Go package. A file that exists is never overwritten.",
			example: "shardgen init tiny",
		},
		{
			name: "generate", args: "SPEC...", minimum: 1, maximum: -1, run: runGenerate,
			flags:   []taken{{name: "out", value: "DIR", usage: "folder of the package"}, {name: "cuda"}, {name: "verbose"}, {name: "json"}},
			summary: "writes the package of each spec: Go, and CUDA kernels",
			detail: "--out names the folder of the package. Under go generate the default is ./PACKAGE,\n" +
				"or the current folder where the file with the directive is of that package already;\n" +
				"elsewhere it is the folder that holds the package already, PACKAGE beside the spec or\n" +
				"the spec's own, else generated/PACKAGE beside the go.mod above the spec.\n\n" +
				"--cuda auto writes CUDA source beside the Go files, zz_layout.cuh and zz_kernels.cu,\n" +
				"and zz_kernels.fatbin, which nvcc compiles of it and the package embeds. nvcc is what\n" +
				"$SHARDGEN_NVCC names, or that of $CUDA_HOME/bin, the PATH or /usr/local/cuda/bin.\n" +
				"Without one the fatbin is empty and the package runs on CPUs only. A fatbin of the\n" +
				"same source is kept as it is. --cuda require fails without nvcc. --cuda off leaves\n" +
				"all of it out, and removes what was written.\n\n" +
				"Nothing is written if any spec has a fault. Generated files that a spec no longer\n" +
				"gives are removed; files written by hand are left alone.\n\n" +
				"In a Go file, after go get -tool github.com/shardgen/shardgen/cmd/shardgen:\n\n" +
				"  //go:generate go tool shardgen generate model.yaml",
			example: "shardgen generate tiny/model.yaml --verbose",
		},
		{
			name: "check", args: "SPEC...", minimum: 1, maximum: -1, run: runCheck,
			flags:   []taken{{name: "out", value: "DIR", usage: "folder of the package"}, {name: "cuda"}, {name: "verbose", usage: "names fatbins that are empty too"}, {name: "json"}},
			summary: "compares the generated packages with their specs and writes nothing",
			detail: "What generate would change is printed as a unified diff; the exit status is then 1.\n" +
				"The folder of a package is found as generate finds it. --cuda off has to be what\n" +
				"generate was given. nvcc is not run: a fatbin differs if its record names other CUDA\n" +
				"source, or if it is damaged. An empty one differs with --cuda require only.",
			example: "shardgen check tiny/model.yaml",
		},
		{
			name: "plan", args: "SPEC", minimum: 1, maximum: 1, run: runPlan,
			flags:   []taken{{name: "world"}, {name: "rank"}, {name: "format"}, {name: "json"}},
			summary: "prints where every parameter lies and what a rank needs",
			detail: "--world may be any size, the default is the first that the spec lists. --rank adds\n" +
				"the parts of the parameters that this rank owns. The JSON is described by\n" +
				"shardgen schema plan. A SPEC of - is read from standard input.",
			example: "shardgen plan tiny/model.yaml --world 4 --rank 3 --format json",
		},
		{
			name: "import", args: "FILE...", minimum: 1, maximum: -1, run: runImport,
			flags: []taken{
				{name: "out", value: "SPEC", usage: "the spec to write; - is standard output", required: true},
				{name: "world", value: "LIST", usage: "world sizes of the spec, such as 1,8 (default 1,2,4,8)"},
				{name: "header-only"}, {name: "json"},
			},
			summary: "writes the spec of a model that exists as a checkpoint or parameter table",
			detail: "FILE is a safetensors file, all of a checkpoint's safetensors files, a\n" +
				"model.safetensors.index.json (its files are looked for beside it), or a parameter\n" +
				"table (.json, .json.gz). A spec that exists is never overwritten. What it leaves out\n" +
				"or guesses is said on standard error.",
			example: "shardgen import model.safetensors --out model.yaml --world 1,8",
		},
	}
}

// helpCommands are those that tell about shardgen and its language.
func helpCommands() []*command {
	return []*command{
		{
			name: "explain", args: "CODE", minimum: 1, maximum: 1, run: runExplain,
			flags:   []taken{{name: "json"}},
			summary: "says more about a fault, by the code in brackets behind its message",
			example: "shardgen explain unknown-key",
		},
		{
			name: "schema", args: "[spec|plan]", maximum: 1, run: runSchema,
			flags:   []taken{{name: "json"}},
			summary: "prints the JSON Schema of specs, or of plan --format json",
			example: "shardgen schema spec > shardgen.schema.json",
		},
		{
			name: "version", run: runVersion,
			summary: "prints the versions of shardgen, of its generated code and of Go",
			example: "shardgen version",
		},
		{
			name: "help", args: "[COMMAND]", maximum: 1, run: runHelp,
			summary: "prints this list, or tells more about a command",
			example: "shardgen help generate",
		},
	}
}

// findCommand returns nil for a word that is no command.
func findCommand(name string) *command {
	for _, c := range commands() {
		if c.name == name {
			return c
		}
	}
	return nil
}

func commandNames() []string {
	var names []string
	for _, c := range commands() {
		names = append(names, c.name)
	}
	return names
}
