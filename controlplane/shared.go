package controlplane

// What controllers share: clients, informers, a recorder of events, metrics.

import (
	"context"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
)

// shared is what controllers are made from.
type shared struct {
	cfg       Config
	log       *slog.Logger
	client    kubernetes.Interface
	scheduler kubernetes.Interface
	objects   metadata.Interface
	informers informers.SharedInformerFactory
	events    record.EventBroadcaster
	metrics   *scope
}

func (p *ControlPlane) share(ctx context.Context) (*shared, error) {
	client, err := p.client(p.cfg.Client, "controllers")
	if err != nil {
		return nil, err
	}
	scheduler, err := p.client(p.cfg.SchedulerClient, "scheduler")
	if err != nil {
		return nil, err
	}
	objects, err := metadata.NewForConfig(tuned(p.cfg.Client, "controllers"))
	if err != nil {
		return nil, fmt.Errorf("make the controllers' client: %w", err)
	}
	return &shared{
		cfg: p.cfg, log: p.log, client: client, scheduler: scheduler, objects: objects, metrics: &scope{r: p.cfg.Metrics},
		informers: informers.NewSharedInformerFactory(client, 0), events: broadcast(ctx, scheduler),
	}, nil
}

// broadcast takes events to the API until it is shut down, which its caller does.
func broadcast(ctx context.Context, client kubernetes.Interface) record.EventBroadcaster {
	events := record.NewBroadcaster(record.WithContext(ctx))
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return events
}

// client returns a client for what the user agent says.
func (p *ControlPlane) client(c *rest.Config, name string) (kubernetes.Interface, error) {
	client, err := kubernetes.NewForConfig(tuned(c, name))
	if err != nil {
		return nil, fmt.Errorf("make the client of the %s: %w", name, err)
	}
	return client, nil
}

// recorder returns a recorder of events that come from component.
func (s *shared) recorder(component string) record.EventRecorder {
	return s.events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})
}

// tuned returns a copy of c with what every controller wants of a client.
func tuned(c *rest.Config, name string) *rest.Config {
	c = rest.CopyConfig(c)
	rest.AddUserAgent(c, name)
	if c.QPS == 0 {
		c.QPS, c.Burst = DefaultQPS, DefaultBurst
	}
	if c.ContentType == "" {
		c.ContentType = "application/vnd.kubernetes.protobuf"
		c.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	}
	return c
}
