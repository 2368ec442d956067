package gpu

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/shardgen/shardgen/runtime/device/cuda"
)

// place is where a process computes, as the ranks of a job tell each other.
type place struct {
	Host      string    `json:"host"`
	Process   int       `json:"process"` // its pid
	LocalRank int       `json:"localRank"`
	Ordinal   int       `json:"ordinal"` // of the GPU among those that the process sees
	GPU       cuda.UUID `json:"gpu"`
}

func newPlace(d *cuda.Device, localRank int) (p place, err error) {
	p = place{Process: os.Getpid(), LocalRank: localRank, Ordinal: d.Ordinal()}
	if p.Host, err = os.Hostname(); err != nil {
		p.Host = "a host without a name"
	}
	p.GPU, err = d.UUID()
	return p, err
}

func (p place) String() string {
	return fmt.Sprintf("local rank %d, GPU %d of pid %d on %s", p.LocalRank, p.Ordinal, p.Process, p.Host)
}

// claim tells the other processes of the job which GPU this one has, and refuses
// one that two have. What counts is the UUID: launchers may number the GPUs of each
// process from 0, by CUDA_VISIBLE_DEVICES or in containers, and the parts that MIG
// makes of a GPU have UUIDs of their own.
func (m *member) claim(ctx context.Context, d *cuda.Device) error {
	mine, err := newPlace(d, m.localRank)
	if err != nil {
		return err
	}
	payload, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	payloads, err := m.control.Exchange(ctx, payload)
	if err != nil {
		return err
	}
	places := make([]place, len(payloads))
	for r := range payloads {
		if err := json.Unmarshal(payloads[r], &places[r]); err != nil {
			return fmt.Errorf("gpu: rank %d does not say which GPU it has (%w); run the same build on all ranks", r, err)
		}
	}
	return shared(places)
}

// shared names the ranks of the first GPU that several have.
func shared(places []place) error {
	ranks := map[cuda.UUID][]int{}
	for r, p := range places {
		ranks[p.GPU] = append(ranks[p.GPU], r)
	}
	for _, p := range places {
		if same := ranks[p.GPU]; len(same) > 1 {
			var who []string
			for _, r := range same {
				who = append(who, fmt.Sprintf("rank %d (%v)", r, places[r]))
			}
			return fmt.Errorf("gpu: %s have the same GPU, UUID %v; give each process of a host a local rank of its own (LOCAL_RANK or SLURM_LOCALID), and if CUDA_VISIBLE_DEVICES is set for each, another GPU in it",
				strings.Join(who, " and "), p.GPU)
		}
	}
	return nil
}
