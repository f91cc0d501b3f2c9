// What many pods of one Deployment and many Services cost a server with simulated nodes.

package fleet

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/hawser-project/hawser/tunnel/qmux"
)

const (
	// deployedNodes and deployedPods are what deployedMark is of.
	deployedNodes = 500
	deployedPods  = 1000
	// deployedMark bounds the time from the creation of a Deployment until all of its
	// pods are ready, and that of a new version until the old pods are gone.
	deployedMark = time.Minute
	// servicesMade is how many Services BenchmarkServices makes, and watchedFor bounds
	// a watch of their slices.
	servicesMade = 10_000
	watchedFor   = 10 * time.Minute
)

// BenchmarkDeployment shows how soon the pods of a Deployment are ready, and how soon
// a new version of it has taken their place.
func BenchmarkDeployment(b *testing.B) {
	for b.Loop() {
		benchmarkDeployment(b)
	}
}

func benchmarkDeployment(b *testing.B) {
	b.Helper()
	s := startServer(b)
	_, stop := s.startFleet(b, Config{Nodes: deployedNodes, Zones: 4, Weight: Light, Transport: qmux.Transport()})
	defer stop()
	labels := map[string]string{"app": "many"}
	deployments := s.api.AppsV1().Deployments("default")
	before, began := s.usage(b), time.Now()
	_, err := deployments.Create(b.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "many"},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(deployedPods)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				TerminationGracePeriodSeconds: new(int64(1)),
				Containers:                    []corev1.Container{{Name: "c", Image: "image:1", Command: []string{"server"}}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	ready := s.rolledOut(b, began)
	cpu := s.usage(b).cpu - before.cpu
	b.Logf("%d pods on %d nodes are ready after %v, and take %v of the server's CPU", deployedPods, deployedNodes, ready, cpu)
	b.ReportMetric(ready.Seconds(), "ready-s")
	b.ReportMetric(1000*cpu.Seconds()/deployedPods, "server-CPU-ms/pod")

	before, began = s.usage(b), time.Now()
	d, err := deployments.Get(b.Context(), "many", metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	d.Spec.Template.Spec.Containers[0].Image = "image:2"
	if _, err := deployments.Update(b.Context(), d, metav1.UpdateOptions{}); err != nil {
		b.Fatal(err)
	}
	rolled := s.rolledOut(b, began)
	cpu = s.usage(b).cpu - before.cpu
	b.Logf("a new version has taken their place after %v, and takes %v of the server's CPU", rolled, cpu)
	b.ReportMetric(rolled.Seconds(), "rolled-s")
	if max(ready, rolled) > deployedMark {
		b.Errorf("ready after %v, a new version after %v; the mark is %v", ready, rolled, deployedMark)
	}
}

// rolledOut waits until every pod of the Deployment is of its newest version and
// available, and no other is left, and returns how long after begun that was.
func (s *site) rolledOut(b *testing.B, began time.Time) time.Duration {
	b.Helper()
	eventually(b, "the Deployment is rolled out", func() error {
		d, err := s.api.AppsV1().Deployments("default").Get(b.Context(), "many", metav1.GetOptions{})
		if err != nil {
			return err
		}
		st := d.Status
		if st.ObservedGeneration < d.Generation || st.UpdatedReplicas < deployedPods || st.AvailableReplicas < deployedPods || st.Replicas > deployedPods {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	return time.Since(began).Round(time.Millisecond)
}

// BenchmarkServices shows what Services and their EndpointSlices cost: to make, to
// keep, to list, and to have watched from the beginning.
func BenchmarkServices(b *testing.B) {
	for b.Loop() {
		benchmarkServices(b)
	}
}

func benchmarkServices(b *testing.B) {
	b.Helper()
	s := startServer(b)
	_, stop := s.startFleet(b, Config{Nodes: 1, Zones: 1, Weight: Light, Transport: qmux.Transport()})
	defer stop()
	s.trim(b)
	profiled := s.profile(b, "cpu-services", "profile?seconds=40")
	empty, began := s.usage(b), time.Now()
	group, ctx := errgroup.WithContext(b.Context())
	group.SetLimit(32)
	for i := range servicesMade {
		group.Go(func() error { return s.serve(ctx, i) })
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
	made := time.Since(began)
	s.watched(b)
	all := time.Since(began)
	<-profiled
	b.Logf("%d Services are made after %v, and have slices after %v and %v of the server's CPU", servicesMade,
		made.Round(time.Millisecond), all.Round(time.Millisecond), s.usage(b).cpu-empty.cpu)
	s.trim(b)
	b.ReportMetric(float64(s.usage(b).rss-empty.rss)/servicesMade/1024, "server-KiB/service")
	b.ReportMetric(all.Seconds(), "made-s")

	began = time.Now()
	list, err := s.api.CoreV1().Services("default").List(b.Context(), metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Logf("a list of %d takes %v", len(list.Items), time.Since(began).Round(time.Millisecond))
	b.ReportMetric(time.Since(began).Seconds(), "list-s")
	began = time.Now()
	s.watched(b)
	b.Logf("a watch has their slices after %v", time.Since(began).Round(time.Millisecond))
	b.ReportMetric(time.Since(began).Seconds(), "watch-s")
}

// serve makes a Service with a selector, whose slice its controller then makes.
func (s *site) serve(ctx context.Context, i int) error {
	_, err := s.api.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("service-%d", i)},
		Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"app": fmt.Sprintf("app-%d", i)},
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}, metav1.CreateOptions{})
	return err
}

// watched returns when a watch that begins with all there is has had a slice of every
// Service.
func (s *site) watched(b *testing.B) {
	b.Helper()
	w, err := s.api.DiscoveryV1().EndpointSlices("default").Watch(b.Context(), metav1.ListOptions{
		SendInitialEvents: new(true), AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		TimeoutSeconds: new(int64(watchedFor / time.Second)),
	})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Stop()
	for n := 0; n < servicesMade; {
		switch e, ok := <-w.ResultChan(); {
		case !ok:
			b.Fatalf("the watch has ended after %d slices", n)
		case e.Type == watch.Added:
			if slice := e.Object.(*discoveryv1.EndpointSlice); strings.HasPrefix(slice.Name, "service-") {
				n++
			}
		}
	}
}
