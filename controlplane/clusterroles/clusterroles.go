// Package clusterroles fills in the ClusterRoles that are made of others: one with an
// aggregationRule has the rules of all whose labels it selects, in the order of their
// names, and each rule once.
//
// When a role changes, those that select it now or did before are looked at again;
// there are few of them, so all are.
package clusterroles

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// A Controller is Kubernetes' clusterrole-aggregation-controller.
type Controller struct {
	client kubernetes.Interface
	roles  rbaclisters.ClusterRoleLister
	inf    cache.SharedIndexInformer
	log    *slog.Logger
}

// Config configures a Controller: there is nothing to set.
type Config struct{}

// New returns a controller that watches ClusterRoles through d.Informers. It starts nothing.
func New(d loop.Deps, _ Config) (*Controller, error) {
	roles := d.Informers.Rbac().V1().ClusterRoles()
	c := &Controller{client: d.Client, roles: roles.Lister(), inf: roles.Informer()}
	c.log = loop.Logger(d.Log, c.Name())
	return c, nil
}

// Name is the controller's name in Kubernetes.
func (*Controller) Name() string { return "clusterrole-aggregation-controller" }

// Run fills in until ctx is done. The factory's informers must be running.
func (c *Controller) Run(ctx context.Context) error {
	q := loop.NewQueue(loop.Config[string]{
		Name: c.Name(), Workers: 1, Log: c.log,
		Do: func(ctx context.Context, name string) (time.Duration, error) { return 0, c.sync(ctx, name) },
	})
	stop, err := loop.Watch(c.inf, func(string) {
		all, err := c.roles.List(labels.Everything())
		if err != nil {
			return // a lister of a cache does not fail
		}
		for _, r := range all {
			if r.AggregationRule != nil {
				q.Add(r.Name)
			}
		}
	})
	if err != nil {
		return err
	}
	defer stop()
	return q.Run(ctx)
}

// sync gives one role the rules that it has to have.
func (c *Controller) sync(ctx context.Context, name string) error {
	was, err := c.roles.Get(name)
	if apierrors.IsNotFound(err) || err == nil && was.AggregationRule == nil {
		return nil
	}
	if err != nil {
		return err
	}
	rules, err := c.rules(was)
	if err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(rules, was.Rules) {
		return nil
	}
	is := was.DeepCopy()
	is.Rules = rules
	if _, err = c.client.RbacV1().ClusterRoles().Update(ctx, is, metav1.UpdateOptions{}); apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return loop.Quiet(err) // somebody else was faster: look again
	}
	if err != nil {
		return fmt.Errorf("aggregate cluster role %s: %w", name, err)
	}
	return nil
}

// rules are those of all that a role selects.
func (c *Controller) rules(of *rbacv1.ClusterRole) (all []rbacv1.PolicyRule, err error) {
	for i := range of.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&of.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, fmt.Errorf("aggregate cluster role %s: selector %d: %w", of.Name, i, err)
		}
		parts, err := c.roles.List(selector)
		if err != nil {
			return nil, err
		}
		slices.SortFunc(parts, func(a, b *rbacv1.ClusterRole) int { return strings.Compare(a.Name, b.Name) })
		for _, p := range parts {
			if p.Name == of.Name {
				continue
			}
			for _, r := range p.Rules {
				if !slices.ContainsFunc(all, func(have rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(have, r) }) {
					all = append(all, *r.DeepCopy())
				}
			}
		}
	}
	return all, nil
}
