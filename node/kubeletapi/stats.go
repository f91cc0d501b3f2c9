package kubeletapi

// Statistics: what the node, its pods and their containers use.

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/hawser-project/hawser/node/runtime"
)

func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	pods, err := s.podStats(r.Context())
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, &stats.Summary{Node: s.nodeStats(), Pods: pods})
}

// A containerUsage is a running container and what it uses.
type containerUsage struct {
	runtime.ContainerStatus
	use runtime.Usage
}

// usages asks about every running container, sorted by pod and name. Those that
// end meanwhile are left out.
func (s *Server) usages(ctx context.Context) ([]containerUsage, error) {
	all, err := s.cfg.Runtime.Containers(ctx)
	if err != nil {
		return nil, err
	}
	var list []containerUsage
	for _, c := range all {
		if c.State != runtime.Running {
			continue
		}
		u, err := s.cfg.Runtime.Usage(ctx, c.ID)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err == nil {
			list = append(list, containerUsage{c, u})
		}
	}
	slices.SortFunc(list, func(a, b containerUsage) int {
		return strings.Compare(a.Pod.String()+string(a.Pod.UID)+"/"+a.Name, b.Pod.String()+string(b.Pod.UID)+"/"+b.Name)
	})
	return list, nil
}

func (s *Server) podStats(ctx context.Context) ([]stats.PodStats, error) {
	list, err := s.usages(ctx)
	if err != nil {
		return nil, err
	}
	pods := make([]stats.PodStats, 0, len(list))
	for _, c := range list {
		ref := stats.PodReference{Name: c.Pod.Name, Namespace: c.Pod.Namespace, UID: string(c.Pod.UID)}
		if len(pods) == 0 || pods[len(pods)-1].PodRef != ref {
			pods = append(pods, stats.PodStats{
				PodRef:       ref,
				StartTime:    metav1.NewTime(c.StartedAt),
				CPU:          &stats.CPUStats{Time: metav1.NewTime(c.use.Time)},
				Memory:       &stats.MemoryStats{Time: metav1.NewTime(c.use.Time)},
				ProcessStats: &stats.ProcessStats{ProcessCount: new(uint64)},
			})
		}
		p := &pods[len(pods)-1]
		cs := containerStats(c)
		p.Containers = append(p.Containers, cs)
		if c.StartedAt.Before(p.StartTime.Time) {
			p.StartTime = metav1.NewTime(c.StartedAt)
		}
		p.CPU.UsageCoreNanoSeconds = sum(p.CPU.UsageCoreNanoSeconds, cs.CPU.UsageCoreNanoSeconds)
		p.CPU.UsageNanoCores = sum(p.CPU.UsageNanoCores, cs.CPU.UsageNanoCores)
		p.Memory.WorkingSetBytes = sum(p.Memory.WorkingSetBytes, cs.Memory.WorkingSetBytes)
		p.Memory.UsageBytes = sum(p.Memory.UsageBytes, cs.Memory.UsageBytes)
		*p.ProcessStats.ProcessCount += c.use.PIDs
	}
	return pods, nil
}

func containerStats(c containerUsage) stats.ContainerStats {
	at := metav1.NewTime(c.use.Time)
	used := c.use.MemoryBytes + c.use.InactiveFile
	cs := stats.ContainerStats{
		Name:      c.Name,
		StartTime: metav1.NewTime(c.StartedAt),
		CPU:       &stats.CPUStats{Time: at, UsageCoreNanoSeconds: &c.use.CPUNanos},
		Memory:    &stats.MemoryStats{Time: at, WorkingSetBytes: &c.use.MemoryBytes, UsageBytes: &used},
	}
	if c.use.SampledCPUNs > 0 {
		cs.CPU.UsageNanoCores = &c.use.SampledCPUNs
	}
	return cs
}

// sum adds what is known.
func sum(a, b *uint64) *uint64 {
	if a == nil {
		return b
	}
	if b == nil {
		return a
	}
	n := *a + *b
	return &n
}

// nodeStats is about the machine as a whole.
func (s *Server) nodeStats() stats.NodeStats {
	st := stats.NodeStats{NodeName: s.cfg.NodeName, StartTime: metav1.NewTime(s.started)}
	if up := bootTime(); !up.IsZero() {
		st.StartTime = metav1.NewTime(up)
	}
	st.CPU, st.Memory = machineStats(procfs.DefaultMountPoint)
	if fs, err := fsStats(s.cfg.DataDir); err == nil {
		st.Fs = fs
		st.Runtime = &stats.RuntimeStats{ImageFs: fs, ContainerFs: fs}
	}
	return st
}

func bootTime() time.Time {
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(si.Uptime) * time.Second).Truncate(time.Second)
}

// machineStats reads the statistics of the machine's processors and memory from the file
// system proc; nil where they cannot be read.
func machineStats(proc string) (*stats.CPUStats, *stats.MemoryStats) {
	now := metav1.Now()
	fs, err := procfs.NewFS(proc)
	if err != nil {
		return nil, nil
	}
	var cpu *stats.CPUStats
	st, err := fs.Stat()
	if err == nil {
		t := st.CPUTotal
		busy := uint64((t.User + t.Nice + t.System + t.IRQ + t.SoftIRQ) * float64(time.Second))
		cpu = &stats.CPUStats{Time: now, UsageCoreNanoSeconds: &busy}
	}
	info, err := fs.Meminfo()
	if err != nil || info.MemTotalBytes == nil || info.MemAvailableBytes == nil || *info.MemAvailableBytes > *info.MemTotalBytes {
		return cpu, nil
	}
	used := *info.MemTotalBytes - *info.MemAvailableBytes
	return cpu, &stats.MemoryStats{Time: now, AvailableBytes: info.MemAvailableBytes, UsageBytes: &used, WorkingSetBytes: &used}
}

func fsStats(path string) (*stats.FsStats, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return nil, err
	}
	size := uint64(fs.Bsize)
	capacity, available, used := fs.Blocks*size, fs.Bavail*size, (fs.Blocks-fs.Bfree)*size
	inodes, free := fs.Files, fs.Ffree
	inodesUsed := inodes - min(free, inodes)
	return &stats.FsStats{
		Time:           metav1.Now(),
		CapacityBytes:  &capacity,
		AvailableBytes: &available,
		UsedBytes:      &used,
		Inodes:         &inodes,
		InodesFree:     &free,
		InodesUsed:     &inodesUsed,
	}, nil
}
