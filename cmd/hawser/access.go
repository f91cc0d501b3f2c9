// Who may do what: the authorizers that the API server asks, one after the other.

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/apiserver/pkg/authorization/union"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	webhookmetrics "k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"
	"k8s.io/client-go/informers"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/answers"
	"github.com/hawser-project/hawser/auth/kubeauth"
	"github.com/hawser-project/hawser/auth/kubeauth/place"
	"github.com/hawser-project/hawser/auth/rbac"
	"github.com/hawser-project/hawser/controlplane/apiserver"
)

// The modes of --authorization-mode.
const (
	modeNode    = "Node"
	modeRBAC    = "RBAC"
	modeWebhook = "Webhook"
)

// webhookBackoff is how long after a failure the webhook is asked again, at first.
const webhookBackoff = 500 * time.Millisecond

// webhookTimeout is how long an answer of the webhook is waited for, as with admission's.
const webhookTimeout = 10 * time.Second

// accessOptions are the flags about who may do what. Names, defaults and meanings are
// kube-apiserver's.
type accessOptions struct {
	modes         []string
	webhookConfig string
	allowedTTL    time.Duration
	deniedTTL     time.Duration
	webhookDial   dialFunc // is no flag; nil means that it is dialed
	// webhookTimeout is no flag; zero means the constant.
	webhookTimeout time.Duration

	enabledPlugins, disabledPlugins []string
}

func (o *accessOptions) addFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.modes, "authorization-mode", []string{modeNode, modeRBAC}, "who is asked, in this order, whether a request is allowed: Node (nodes and the control plane's own parts, required), RBAC (roles), Webhook")
	f.StringVar(&o.webhookConfig, "authorization-webhook-config-file", "", "with mode Webhook: kubeconfig of the service to ask")
	f.DurationVar(&o.allowedTTL, "authorization-webhook-cache-authorized-ttl", 5*time.Minute, "how long a yes of the webhook is remembered")
	f.DurationVar(&o.deniedTTL, "authorization-webhook-cache-unauthorized-ttl", 30*time.Second, "how long a no of the webhook is remembered")
	f.StringSliceVar(&o.enabledPlugins, "enable-admission-plugins", nil, "admission plugins that must be on, as all are that there are unless they are disabled: "+strings.Join(plugins(), ", "))
	f.StringSliceVar(&o.disabledPlugins, "disable-admission-plugins", nil, "admission plugins to leave out; "+nodeRestriction+" cannot be")
}

// nodeRestriction keeps nodes from each other's objects. The authorizer counts on it.
const nodeRestriction = "NodeRestriction"

// plugins are the names of all admission plugins.
func plugins() []string { return append(apiserver.AdmissionPlugins(), nodeRestriction) }

// checkPlugins refuses names that are none, or are both on and off.
func (o *accessOptions) checkPlugins() error {
	for flag, names := range map[string][]string{"--enable-admission-plugins": o.enabledPlugins, "--disable-admission-plugins": o.disabledPlugins} {
		for _, name := range names {
			if !slices.Contains(plugins(), name) {
				return fmt.Errorf("%s: there is no %q; there are %s", flag, name, strings.Join(plugins(), ", "))
			}
		}
	}
	for _, name := range o.disabledPlugins {
		switch {
		case name == nodeRestriction:
			return fmt.Errorf("--disable-admission-plugins %s: without it a node could write the objects of another", name)
		case slices.Contains(o.enabledPlugins, name):
			return fmt.Errorf("--disable-admission-plugins %s is also in --enable-admission-plugins: say one of them", name)
		}
	}
	return nil
}

// check refuses what cannot work, naming the flag.
func (o *accessOptions) check() error {
	known := []string{modeNode, modeRBAC, modeWebhook}
	for i, m := range o.modes {
		switch {
		case !slices.Contains(known, m):
			return fmt.Errorf("--authorization-mode %q: want some of %s", m, strings.Join(known, ", "))
		case slices.Contains(o.modes[:i], m):
			return fmt.Errorf("--authorization-mode: %s is there twice", m)
		}
	}
	asked := slices.Contains(o.modes, modeWebhook)
	switch {
	case !slices.Contains(o.modes, modeNode):
		return fmt.Errorf("--authorization-mode %q lacks %s: nodes and controllers could do nothing", strings.Join(o.modes, ","), modeNode)
	case asked && o.webhookConfig == "":
		return fmt.Errorf("--authorization-mode %s needs --authorization-webhook-config-file", modeWebhook)
	case !asked && o.webhookConfig != "":
		return fmt.Errorf("--authorization-webhook-config-file is for --authorization-mode %s", modeWebhook)
	case o.allowedTTL < 0 || o.deniedTTL < 0:
		return fmt.Errorf("--authorization-webhook-cache-authorized-ttl %v and --authorization-webhook-cache-unauthorized-ttl %v: want none of them negative", o.allowedTTL, o.deniedTTL)
	}
	if asked {
		if _, err := o.newWebhook(&auth.Files{}); err != nil {
			return err
		}
	}
	return o.checkPlugins()
}

// An access is all authorizers together, and the one for roles by itself.
type access struct {
	authorizer.Authorizer
	rules authorizer.RuleResolver
	roles *rbac.Authorizer // nil without mode RBAC
}

// newAccess makes the authorizers of the flags. Roles are known once the informers
// run that they are given.
func (o *accessOptions) newAccess(objects *kubeauth.Objects, files *auth.Files) (*access, error) {
	a := &access{}
	var chain []union.NamedAuthorizer
	var lists []authorizer.RuleResolver
	for _, m := range o.modes {
		var next interface {
			authorizer.Authorizer
			authorizer.RuleResolver
		}
		switch m {
		case modeNode:
			next = kubeauth.NewAuthorizer(objects)
		case modeRBAC:
			a.roles = &rbac.Authorizer{}
			next = a.roles
		case modeWebhook:
			var err error
			if next, err = o.newWebhook(files); err != nil {
				return nil, err
			}
		}
		chain, lists = append(chain, union.NamedAuthorizer{AuthorizerName: m, Authorizer: next}), append(lists, next)
	}
	var err error
	if a.Authorizer, err = union.New(chain...); err != nil {
		return nil, fmt.Errorf("--authorization-mode: %w", err)
	}
	a.rules = union.NewRuleResolvers(lists...)
	return a, nil
}

// admission is plugins, and the one that roles need.
func (a *access) admission(plugins ...admission.Interface) []admission.Interface {
	if a.roles == nil {
		return plugins
	}
	return append(plugins, rbac.Escalation(a.roles))
}

// use has roles go by what the informers of f see.
func (a *access) use(f informers.SharedInformerFactory) error {
	if a.roles == nil {
		return nil
	}
	return a.roles.Use(f)
}

// A webhookAuthorizer asks the service of a kubeconfig that is followed. While that does
// not answer it has no opinion, as with kube-apiserver's flags, and says so; the library
// has logged why. What has been remembered of one version of the file is forgotten with it.
type webhookAuthorizer struct {
	file *auth.File[*webhook.WebhookAuthorizer]
}

func (o *accessOptions) newWebhook(files *auth.Files) (webhookAuthorizer, error) {
	file, err := auth.Follow(files, "--authorization-webhook-config-file", func(contents [][]byte) (*webhook.WebhookAuthorizer, error) {
		// The library reads the file itself: other files are named relative to it.
		config, err := webhookutil.LoadKubeconfig(o.webhookConfig, o.webhookDial)
		if err != nil {
			return nil, place.Of(contents[0], err)
		}
		config.Timeout = cmp.Or(o.webhookTimeout, webhookTimeout)
		config.Wrap(answers.Bound)
		return webhook.New(config, "v1", o.allowedTTL, o.deniedTTL, webhookutil.DefaultRetryBackoffWithInitialDelay(webhookBackoff),
			authorizer.DecisionNoOpinion, nil, "webhook", webhookmetrics.NoopAuthorizerMetrics{}, authorizationcel.NewDefaultCompiler())
	}, o.webhookConfig)
	return webhookAuthorizer{file}, err
}

// Authorize implements authorizer.Authorizer.
func (w webhookAuthorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := w.file.Get().Authorize(ctx, a)
	if err != nil && decision == authorizer.DecisionNoOpinion && ctx.Err() == nil {
		return decision, "the authorization webhook does not answer", nil // an error would make it 500
	}
	return decision, reason, err
}

// ConditionsAwareAuthorize implements authorizer.Authorizer.
func (w webhookAuthorizer) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(w.Authorize(ctx, a))
}

// EvaluateConditions implements authorizer.Authorizer.
func (w webhookAuthorizer) EvaluateConditions(ctx context.Context, d authorizer.ConditionsAwareDecision, data authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return w.file.Get().EvaluateConditions(ctx, d, data)
}

// RulesFor implements authorizer.RuleResolver.
func (w webhookAuthorizer) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return w.file.Get().RulesFor(ctx, u, namespace)
}
