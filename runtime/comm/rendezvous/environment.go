package rendezvous

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

const (
	// SlurmPort is the first of the SlurmPorts ports from which a step of a Slurm
	// job without MASTER_PORT takes one: SlurmPort + (SLURM_JOB_ID + 4 x
	// SLURM_STEP_ID) mod SlurmPorts, so that steps of one job that run at the same
	// time don't try the same four. They lie below the ports that Linux hands out by
	// itself.
	SlurmPort  = 25000
	SlurmPorts = 4096
	// portTries is how many ports from MASTER_PORT on rank 0 tries to listen on.
	portTries = 4
	// maxRanks bounds a job, so that a number read from elsewhere can't take all
	// memory.
	maxRanks = 1 << 16
)

// Environment is what a launcher tells a process of a job.
type Environment struct {
	Rank      int    // 0 <= Rank < Size
	Size      int    // processes of the job
	LocalRank int    // among those of this host; by convention the number of its GPU
	Host      string // where rank 0 runs: a name or an address
	// Ports are where rank 0 may be found: it listens on the first that is free.
	Ports []int
	// Token keeps strangers and other jobs out; equal on all ranks.
	Token string
}

// FromEnvironment reads what torchrun sets: RANK, WORLD_SIZE, LOCAL_RANK,
// MASTER_ADDR and MASTER_PORT. Where none of the first three is set, the rank
// comes from Slurm's SLURM_PROCID, SLURM_NTASKS and SLURM_LOCALID; where the
// address or the port is not set, they are the first host of the step's or the
// job's node list and a port by [SlurmPort]'s rule.
//
// Rank 0 listens on the first free port of MASTER_PORT and the three after it,
// without MASTER_PORT itself where TORCHELASTIC_USE_AGENT_STORE=True says that
// torchrun has its own store there. SHARDGEN_PORT, if set, is the only port.
//
// The token is SHARDGEN_TOKEN or else derived from TORCHELASTIC_RUN_ID,
// SLURM_JOB_ID, MASTER_ADDR and MASTER_PORT, and from SLURM_STEP_ID where the rank
// comes from Slurm: a torchrun on each host may be a step of its own. The derived
// one keeps other jobs apart, but isn't a secret: set SHARDGEN_TOKEN where others
// use the network.
//
// An error names every variable that is missing or wrong.
func FromEnvironment() (Environment, error) { return fromEnvironment(os.LookupEnv) }

// variables reads variables and collects what is wrong with them.
type variables struct {
	lookup func(string) (string, bool)
	faults []error
}

func fromEnvironment(lookup func(string) (string, bool)) (Environment, error) {
	v := &variables{lookup: lookup}
	slurm := v.get("SLURM_PROCID") != ""
	byRank := v.get("RANK") != "" || v.get("WORLD_SIZE") != "" || v.get("LOCAL_RANK") != ""
	if !slurm && !byRank {
		return Environment{}, errors.New("no launcher: neither RANK, WORLD_SIZE and LOCAL_RANK (set by torchrun) nor SLURM_PROCID, SLURM_NTASKS and SLURM_LOCALID (set by srun) are set; start the program with torchrun --no-python or srun, or launch ranks inside one process")
	}
	names, launcher := [3]string{"RANK", "WORLD_SIZE", "LOCAL_RANK"}, "torchrun sets it for every process"
	if !byRank {
		names, launcher = [3]string{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"}, "srun sets it for every task"
	}
	e := Environment{
		Rank:      v.number(names[0], 0, maxRanks-1, launcher),
		Size:      v.number(names[1], 1, maxRanks, launcher),
		LocalRank: v.number(names[2], 0, maxRanks-1, launcher),
	}
	if len(v.faults) == 0 {
		v.agree(e, names)
	}
	e.Host = v.host(slurm)
	e.Ports = v.ports(slurm)
	step := ""
	if !byRank {
		step = v.get("SLURM_STEP_ID")
	}
	e.Token = v.token(e.Host, v.get("MASTER_PORT"), step)
	if len(v.faults) > 0 {
		return Environment{}, errors.Join(v.faults...)
	}
	return e, nil
}

// get returns a variable without the spaces around it, empty where it isn't set.
func (v *variables) get(name string) string {
	value, _ := v.lookup(name)
	return strings.TrimSpace(value)
}

func (v *variables) fault(format string, args ...any) {
	v.faults = append(v.faults, fmt.Errorf(format, args...))
}

// number reads a decimal number from low to high; launcher says who sets it.
func (v *variables) number(name string, low, high int, launcher string) int {
	text := v.get(name)
	if text == "" {
		v.fault("%s is not set; %s", name, launcher)
		return low
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		v.fault("%s is %q, expected a number from %d to %d; %s", name, text, low, high, launcher)
		return low
	}
	return n
}

// agree compares the three numbers with one another.
func (v *variables) agree(e Environment, names [3]string) {
	if e.Rank >= e.Size {
		v.fault("%s is %d but %s is %d, which has ranks 0 to %d; both come from the same launcher, so one of them was set by hand", names[0], e.Rank, names[1], e.Size, e.Size-1)
	}
	if e.LocalRank >= e.Size {
		v.fault("%s is %d but %s is %d; a host has no more ranks than the job", names[2], e.LocalRank, names[1], e.Size)
	}
	const local = "LOCAL_WORLD_SIZE"
	if names[0] != "RANK" || v.get(local) == "" {
		return
	}
	count := v.number(local, 1, maxRanks, "torchrun sets it to the processes of a host")
	if e.LocalRank >= count || count > e.Size {
		v.fault("%s is %d, but %s is %d and %s is %d; a host has ranks 0 to %s-1 of its own", local, count, names[2], e.LocalRank, names[1], e.Size, local)
	}
}

// host returns where rank 0 runs.
func (v *variables) host(slurm bool) string {
	if host := v.get("MASTER_ADDR"); host != "" {
		if strings.ContainsAny(host, " \t/,") {
			v.fault("MASTER_ADDR is %q, expected the host name or address of rank 0, without a port", host)
		}
		return host
	}
	if !slurm {
		v.fault("MASTER_ADDR is not set; torchrun sets it to the host of rank 0 (its --master-addr)")
		return ""
	}
	for _, name := range []string{"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"} {
		list := v.get(name)
		if list == "" {
			continue
		}
		host, err := firstHost(list)
		if err != nil {
			v.fault("%s is %q: %w; set MASTER_ADDR to the host of rank 0", name, list, err)
		}
		return host
	}
	v.fault("neither MASTER_ADDR nor SLURM_JOB_NODELIST is set; sbatch and salloc set the latter, scripts set MASTER_ADDR to the host of rank 0")
	return ""
}

// ports returns where rank 0 may listen.
func (v *variables) ports(slurm bool) []int {
	const name = "SHARDGEN_PORT"
	if v.get(name) != "" {
		return []int{v.number(name, 1, 65535, "set it to a port that is free on the host of rank 0")}
	}
	first := 0
	switch {
	case v.get("MASTER_PORT") != "" || !slurm:
		first = v.number("MASTER_PORT", 1, 65535, "torchrun sets it (its --master-port)")
	default:
		job, step := v.slurmNumber("SLURM_JOB_ID", "sbatch and salloc set it"), v.slurmNumber("SLURM_STEP_ID", "srun sets it")
		first = SlurmPort + int((job+portTries*step)%SlurmPorts)
	}
	if strings.EqualFold(v.get("TORCHELASTIC_USE_AGENT_STORE"), "true") {
		first++
	}
	var ports []int
	for port := first; port < first+portTries && port <= 65535; port++ {
		ports = append(ports, port)
	}
	if len(ports) == 0 {
		v.fault("MASTER_PORT is 65535, which torchrun's store uses, and no port is above it; set %s", name)
	}
	return ports
}

// slurmNumber reads a number of Slurm's, of 32 bits, that may be missing.
func (v *variables) slurmNumber(name, launcher string) uint64 {
	text := v.get(name)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		v.fault("%s is %q, expected a number of 32 bits; %s", name, text, launcher)
	}
	return n
}

func (v *variables) token(host, port, step string) string {
	if token := v.get("SHARDGEN_TOKEN"); token != "" {
		return token
	}
	h := sha256.New()
	for _, value := range []string{v.get("TORCHELASTIC_RUN_ID"), v.get("SLURM_JOB_ID"), host, port, step} {
		fmt.Fprintf(h, "%d:%s,", len(value), value)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// firstHost returns the first host of a Slurm list such as
// "gpu[003-006,9],login1" or "r[1-2]n[01-40]": every bracket stands for its
// first number.
func firstHost(list string) (string, error) {
	var host strings.Builder
	for rest := list; rest != ""; {
		plain, after, bracket := cutAny(rest)
		host.WriteString(plain)
		if bracket != '[' {
			break // a comma or the end
		}
		inside, behind, closed := strings.Cut(after, "]")
		number, _, _ := strings.Cut(inside, ",")
		number, _, _ = strings.Cut(number, "-")
		if !closed || number == "" || strings.Trim(number, "0123456789") != "" {
			return "", errors.New("a bracket of the host list is not closed or does not begin with a number, expected one like node[01-04,7]")
		}
		host.WriteString(number)
		rest = behind
	}
	if host.Len() == 0 || strings.ContainsAny(host.String(), "[] \t/") {
		return "", errors.New("no host at the start of the list, expected one like node[01-04,7]")
	}
	return host.String(), nil
}

// cutAny cuts a list at the first comma or opening bracket.
func cutAny(list string) (before, after string, at byte) {
	i := strings.IndexAny(list, ",[")
	if i < 0 {
		return list, "", 0
	}
	return list[:i], list[i+1:], list[i]
}
