package rendezvous

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

func lookup(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, ok := vars[name]
		return value, ok
	}
}

var (
	torchrun = map[string]string{"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "gpu1", "MASTER_PORT": "29500"}
	slurm    = map[string]string{"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_NODELIST": "gpu[003-006,9],login1", "SLURM_JOB_ID": "70001"}
)

// with returns variables with some changed; an empty value removes one.
func with(vars map[string]string, changes ...string) map[string]string {
	vars = maps.Clone(vars)
	for i := 0; i < len(changes); i += 2 {
		vars[changes[i]] = changes[i+1]
	}
	return vars
}

func TestTheEnvironmentIsReadAsLaunchersSetIt(t *testing.T) {
	for name, c := range map[string]struct {
		vars map[string]string
		want Environment
	}{
		"torchrun":    {torchrun, Environment{Rank: 3, Size: 8, LocalRank: 1, Host: "gpu1", Ports: []int{29500, 29501, 29502, 29503}}},
		"agent store": {with(torchrun, "TORCHELASTIC_USE_AGENT_STORE", "True"), Environment{Rank: 3, Size: 8, LocalRank: 1, Host: "gpu1", Ports: []int{29501, 29502, 29503, 29504}}},
		"own port":    {with(torchrun, "SHARDGEN_PORT", "7000"), Environment{Rank: 3, Size: 8, LocalRank: 1, Host: "gpu1", Ports: []int{7000}}},
		"last ports":  {with(torchrun, "MASTER_PORT", "65534"), Environment{Rank: 3, Size: 8, LocalRank: 1, Host: "gpu1", Ports: []int{65534, 65535}}},
		"slurm":       {slurm, Environment{Rank: 5, Size: 8, LocalRank: 1, Host: "gpu003", Ports: []int{25369, 25370, 25371, 25372}}},
		"slurm step":  {with(slurm, "SLURM_STEP_NODELIST", "gpu9"), Environment{Rank: 5, Size: 8, LocalRank: 1, Host: "gpu9", Ports: []int{25369, 25370, 25371, 25372}}},
		"second step": {with(slurm, "SLURM_STEP_ID", "1"), Environment{Rank: 5, Size: 8, LocalRank: 1, Host: "gpu003", Ports: []int{25373, 25374, 25375, 25376}}},
		"last step":   {with(slurm, "SLURM_STEP_ID", "4294967295"), Environment{Rank: 5, Size: 8, LocalRank: 1, Host: "gpu003", Ports: []int{25365, 25366, 25367, 25368}}},
		"slurm with an address": {with(slurm, "MASTER_ADDR", " 10.0.0.7 ", "MASTER_PORT", "4000"),
			Environment{Rank: 5, Size: 8, LocalRank: 1, Host: "10.0.0.7", Ports: []int{4000, 4001, 4002, 4003}}},
		// torchrun started by srun: the task is the host's, the ranks are torchrun's.
		"torchrun under slurm": {with(torchrun, "SLURM_PROCID", "1", "SLURM_NTASKS", "4"), Environment{Rank: 3, Size: 8, LocalRank: 1, Host: "gpu1", Ports: []int{29500, 29501, 29502, 29503}}},
	} {
		got, err := fromEnvironment(lookup(c.vars))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got.Token == "" {
			t.Errorf("%s: no token", name)
		}
		if got.Rank != c.want.Rank || got.Size != c.want.Size || got.LocalRank != c.want.LocalRank || got.Host != c.want.Host || !slices.Equal(got.Ports, c.want.Ports) {
			t.Errorf("%s: %+v, expected %+v", name, got, c.want)
		}
	}
}

func TestWrongVariablesAreNamedWithWhatWasFoundAndWhoSetsThem(t *testing.T) {
	for name, c := range map[string]struct {
		vars map[string]string
		want []string
	}{
		"nothing":           {nil, []string{"RANK", "WORLD_SIZE", "LOCAL_RANK", "torchrun", "SLURM_PROCID", "srun"}},
		"rank missing":      {with(torchrun, "RANK", ""), []string{"RANK is not set", "torchrun sets it"}},
		"size missing":      {with(torchrun, "WORLD_SIZE", ""), []string{"WORLD_SIZE is not set"}},
		"local missing":     {with(torchrun, "LOCAL_RANK", ""), []string{"LOCAL_RANK is not set"}},
		"address missing":   {with(torchrun, "MASTER_ADDR", ""), []string{"MASTER_ADDR is not set", "torchrun sets it"}},
		"port missing":      {with(torchrun, "MASTER_PORT", ""), []string{"MASTER_PORT is not set"}},
		"all at once":       {map[string]string{"RANK": "x"}, []string{`RANK is "x"`, "WORLD_SIZE is not set", "LOCAL_RANK is not set", "MASTER_ADDR is not set", "MASTER_PORT is not set"}},
		"rank malformed":    {with(torchrun, "RANK", "0x1"), []string{`RANK is "0x1"`, "expected a number from 0"}},
		"rank negative":     {with(torchrun, "RANK", "-1"), []string{`RANK is "-1"`}},
		"rank too large":    {with(torchrun, "RANK", "8"), []string{"RANK is 8 but WORLD_SIZE is 8", "ranks 0 to 7"}},
		"size zero":         {with(torchrun, "WORLD_SIZE", "0"), []string{`WORLD_SIZE is "0"`, "from 1"}},
		"size huge":         {with(torchrun, "WORLD_SIZE", "99999999999999999999"), []string{"WORLD_SIZE is"}},
		"local too large":   {with(torchrun, "LOCAL_RANK", "8"), []string{"LOCAL_RANK is 8 but WORLD_SIZE is 8"}},
		"local of its host": {with(torchrun, "LOCAL_RANK", "2"), []string{"LOCAL_WORLD_SIZE is 2, but LOCAL_RANK is 2"}},
		"host malformed":    {with(torchrun, "MASTER_ADDR", "tcp://gpu1"), []string{`MASTER_ADDR is "tcp://gpu1"`}},
		"port malformed":    {with(torchrun, "MASTER_PORT", "http"), []string{`MASTER_PORT is "http"`, "65535"}},
		"port zero":         {with(torchrun, "MASTER_PORT", "0"), []string{`MASTER_PORT is "0"`}},
		"no port left":      {with(torchrun, "MASTER_PORT", "65535", "TORCHELASTIC_USE_AGENT_STORE", "True"), []string{"65535", "set SHARDGEN_PORT"}},
		"own port":          {with(torchrun, "SHARDGEN_PORT", "x"), []string{`SHARDGEN_PORT is "x"`}},
		"slurm size":        {with(slurm, "SLURM_NTASKS", ""), []string{"SLURM_NTASKS is not set", "srun sets it"}},
		"slurm rank":        {with(slurm, "SLURM_PROCID", "9"), []string{"SLURM_PROCID is 9 but SLURM_NTASKS is 8"}},
		"slurm list":        {with(slurm, "SLURM_JOB_NODELIST", "gpu[x"), []string{`SLURM_JOB_NODELIST is "gpu[x"`, "set MASTER_ADDR"}},
		"slurm no list":     {with(slurm, "SLURM_JOB_NODELIST", ""), []string{"neither MASTER_ADDR nor SLURM_JOB_NODELIST"}},
		"slurm step":        {with(slurm, "SLURM_STEP_ID", "-1"), []string{`SLURM_STEP_ID is "-1"`, "srun sets it"}},
		"slurm job":         {with(slurm, "SLURM_JOB_ID", "abc"), []string{`SLURM_JOB_ID is "abc"`}},
	} {
		e, err := fromEnvironment(lookup(c.vars))
		if err == nil {
			t.Errorf("%s: no error but %+v", name, e)
			continue
		}
		for _, word := range c.want {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %q does not mention %q", name, err, word)
			}
		}
	}
}

func TestOtherJobsHaveOtherTokens(t *testing.T) {
	seen := map[string]string{}
	for name, vars := range map[string]map[string]string{
		"plain": torchrun, "job": with(torchrun, "SLURM_JOB_ID", "1"), "run": with(torchrun, "TORCHELASTIC_RUN_ID", "1"),
		"host": with(torchrun, "MASTER_ADDR", "gpu2"), "port": with(torchrun, "MASTER_PORT", "1"), "own": with(torchrun, "SHARDGEN_TOKEN", "s"),
		"slurm": slurm, "step 0": with(slurm, "SLURM_STEP_ID", "0"), "step 1": with(slurm, "SLURM_STEP_ID", "1"),
	} {
		e, err := fromEnvironment(lookup(vars))
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[e.Token]; ok {
			t.Errorf("%s and %s have the same token", name, other)
		}
		seen[e.Token] = name
	}
	other := with(torchrun, "RANK", "0", "LOCAL_RANK", "0", "WORLD_SIZE", "4", "SLURM_PROCID", "9", "SLURM_STEP_ID", "3")
	if e, err := fromEnvironment(lookup(other)); err != nil || seen[e.Token] != "plain" {
		t.Errorf("another rank has another token (%v)", err)
	}
}

func TestTheFirstHostOfASlurmList(t *testing.T) {
	for list, want := range map[string]string{
		"gpu1": "gpu1", "gpu1,gpu2": "gpu1", "gpu[003-006,9],login1": "gpu003", "gpu[7]": "gpu7", "gpu[4,8-9]": "gpu4",
		"r[1-2]n[01-40]": "r1n01", "a-[1-2].example.org,b": "a-1.example.org", "10.0.0.[1-4]": "10.0.0.1",
	} {
		if got, err := firstHost(list); err != nil || got != want {
			t.Errorf("%q: %q, %v, expected %q", list, got, err, want)
		}
	}
	for _, list := range []string{"", ",a", "gpu[", "gpu[]", "gpu[a-b]", "gpu[1", "gpu]", "a b", "[,1]"} {
		if got, err := firstHost(list); err == nil {
			t.Errorf("%q gave %q and no error", list, got)
		}
	}
}

func FuzzFirstHost(f *testing.F) {
	f.Add("gpu[003-006,9],login1")
	f.Fuzz(func(t *testing.T, list string) {
		if host, err := firstHost(list); err == nil && (host == "" || strings.ContainsAny(host, "[], ")) {
			t.Errorf("%q gave %q", list, host)
		}
	})
}
