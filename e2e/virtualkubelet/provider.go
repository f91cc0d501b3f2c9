package main

// The provider: the command of a pod's only container is a process of this machine, whose
// output is its log.

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	dto "github.com/prometheus/client_model/go"
	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	"github.com/virtual-kubelet/virtual-kubelet/node/api"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	utilexec "k8s.io/utils/exec"
)

type provider struct {
	dir  string
	ends sync.WaitGroup // of processes

	mu     sync.Mutex // guards the following
	pods   map[types.NamespacedName]*process
	notify func(*corev1.Pod)
}

// A process is that of a pod. Its pod is not changed: a newer status is in a copy.
type process struct {
	cmd *exec.Cmd
	log string
	pod *corev1.Pod
}

func newProvider(dir string) *provider {
	return &provider{dir: dir, pods: map[types.NamespacedName]*process{}}
}

func keyOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// NotifyPods sets the function that is called with each changed pod.
func (p *provider) NotifyPods(_ context.Context, notify func(*corev1.Pod)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notify = notify
}

// CreatePod starts the process.
func (p *provider) CreatePod(_ context.Context, pod *corev1.Pod) error {
	c := pod.Spec.Containers[0]
	argv := append(append([]string(nil), c.Command...), c.Args...)
	if len(argv) == 0 {
		return errdefs.InvalidInput("the container has no command")
	}
	log, err := os.Create(filepath.Join(p.dir, string(pod.UID)))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // it goes on when this call is over
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	run := &process{cmd: cmd, log: log.Name()}
	now := metav1.Now()
	p.report(run, pod, corev1.PodRunning, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}})
	p.ends.Go(func() {
		_ = cmd.Wait()
		p.report(run, pod, corev1.PodSucceeded, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: int32(cmd.ProcessState.ExitCode()), StartedAt: now, FinishedAt: metav1.Now(),
		}})
	})
	return nil
}

// report stores the status of a pod and passes it on.
func (p *provider) report(run *process, pod *corev1.Pod, phase corev1.PodPhase, state corev1.ContainerState) {
	pod = pod.DeepCopy()
	ready := corev1.ConditionFalse
	if state.Running != nil {
		ready = corev1.ConditionTrue
	}
	pod.Status = corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{{
		Name: pod.Spec.Containers[0].Name, Image: pod.Spec.Containers[0].Image, State: state, Ready: state.Running != nil,
	}}}
	for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: ready})
	}
	p.mu.Lock()
	run.pod = pod
	p.pods[keyOf(pod)] = run
	notify := p.notify
	p.mu.Unlock()
	notify(pod)
}

// UpdatePod has nothing to do.
func (p *provider) UpdatePod(context.Context, *corev1.Pod) error { return nil }

// DeletePod ends the process. The library deletes the pod once its end is reported.
func (p *provider) DeletePod(_ context.Context, pod *corev1.Pod) error {
	run, err := p.find(pod.Namespace, pod.Name)
	if err == nil {
		_ = syscall.Kill(-run.cmd.Process.Pid, syscall.SIGKILL)
	}
	return err
}

// endAll kills all processes and waits for their end.
func (p *provider) endAll() {
	p.mu.Lock()
	for _, run := range p.pods {
		_ = syscall.Kill(-run.cmd.Process.Pid, syscall.SIGKILL)
	}
	p.mu.Unlock()
	p.ends.Wait()
}

func (p *provider) find(namespace, name string) (*process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	run := p.pods[types.NamespacedName{Namespace: namespace, Name: name}]
	if run == nil {
		return nil, errdefs.NotFoundf("pod %s/%s is not here", namespace, name)
	}
	return run, nil
}

// GetPod returns a pod with its last reported status.
func (p *provider) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	run, err := p.find(namespace, name)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return run.pod, nil
}

// GetPodStatus returns the last reported status of a pod.
func (p *provider) GetPodStatus(ctx context.Context, namespace, name string) (*corev1.PodStatus, error) {
	pod, err := p.GetPod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return &pod.Status, nil
}

// GetPods lists all.
func (p *provider) GetPods(context.Context) ([]*corev1.Pod, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*corev1.Pod
	for _, run := range p.pods {
		all = append(all, run.pod)
	}
	return all, nil
}

// GetContainerLogs returns what the process has written so far.
func (p *provider) GetContainerLogs(_ context.Context, namespace, name, _ string, _ api.ContainerLogOpts) (io.ReadCloser, error) {
	run, err := p.find(namespace, name)
	if err != nil {
		return nil, err
	}
	return os.Open(run.log)
}

// RunInContainer runs a command beside the process.
func (p *provider) RunInContainer(ctx context.Context, namespace, name, _ string, argv []string, streams api.AttachIO) error {
	if _, err := p.find(namespace, name); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	if in := streams.Stdin(); in != nil {
		// A pipe of its own: cmd would wait for the end of the input otherwise.
		pipe, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		p.ends.Go(func() { // joined when its stream ends with the connection
			_, _ = io.Copy(pipe, in)
			_ = pipe.Close()
		})
	}
	if out := streams.Stdout(); out != nil {
		cmd.Stdout = out
	}
	if out := streams.Stderr(); out != nil {
		cmd.Stderr = out
	}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return utilexec.CodeExitError{Err: err, Code: exit.ExitCode()}
	}
	return err
}

// PortForward joins a stream to a port of this machine.
func (p *provider) PortForward(ctx context.Context, namespace, name string, port int32, stream io.ReadWriteCloser) error {
	if _, err := p.find(namespace, name); err != nil {
		return err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return err
	}
	defer conn.Close()
	p.ends.Go(func() { // until the stream ends, or the connection
		_, _ = io.Copy(conn, stream)
		_ = conn.(*net.TCPConn).CloseWrite()
	})
	_, err = io.Copy(stream, conn)
	return err
}

// AttachToContainer, GetStatsSummary and GetMetricsResource are not needed.
func (p *provider) AttachToContainer(context.Context, string, string, string, api.AttachIO) error {
	return errdefs.InvalidInput("not supported")
}

func (p *provider) GetStatsSummary(context.Context) (*statsv1alpha1.Summary, error) {
	return nil, errdefs.NotFound("not supported")
}

func (p *provider) GetMetricsResource(context.Context) ([]*dto.MetricFamily, error) {
	return nil, errdefs.NotFound("not supported")
}
