// The flags of tokens: of service accounts, and of other issuers.

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/kubeauth"
	"github.com/hawser-project/hawser/auth/kubeauth/accounttoken"
	"github.com/hawser-project/hawser/auth/kubeauth/issuers"
	"github.com/hawser-project/hawser/auth/pki"
)

// Bounds on --service-account-max-token-expiration, as in Kubernetes.
const (
	minTokenBound = time.Hour
	maxTokenBound = (1 << 32) * time.Second
)

// accountOptions are who tokens are of and for, and how long they last.
type accountOptions struct {
	issuers, audiences []string
	maxLife            time.Duration
	config             string
	proxies            genericoptions.RequestHeaderAuthenticationOptions
}

func (o *accountOptions) addFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.issuers, "service-account-issuer", []string{accounttoken.DefaultIssuer}, "URL that tokens of service accounts name as their issuer; those of further ones are believed too")
	f.StringSliceVar(&o.audiences, "api-audiences", nil, "audiences of the API, which tokens must be for (default the first --service-account-issuer)")
	f.DurationVar(&o.maxLife, "service-account-max-token-expiration", 0, "longest life of a token; one that asks for more gets this. 0 means 2^32 seconds")
	f.StringVar(&o.config, "authentication-config", "", "file of the kind AuthenticationConfiguration that says whose tokens beside the cluster's own are believed (OpenID Connect); it is followed")
	o.proxies.AddFlags(f)
}

func (o *accountOptions) check() error {
	if len(o.issuers) == 0 {
		return fmt.Errorf("--service-account-issuer names none: want a URL such as %s", accounttoken.DefaultIssuer)
	}
	for _, issuer := range o.issuers {
		if err := accounttoken.CheckIssuer(issuer); err != nil {
			return fmt.Errorf("--service-account-issuer: %w", err)
		}
	}
	if slices.Contains(o.audiences, "") {
		return errors.New("--api-audiences has an empty name in it")
	}
	if err := errors.Join(o.proxies.Validate()...); err != nil {
		return err
	}
	if o.proxies.ClientCAFile == "" && len(o.proxies.UsernameHeaders)+len(o.proxies.GroupHeaders)+len(o.proxies.AllowedNames) > 0 {
		return errors.New("--requestheader-username-headers, -group-headers and -allowed-names need --requestheader-client-ca-file")
	}
	if o.proxies.ClientCAFile != "" && len(o.proxies.UsernameHeaders) == 0 {
		return errors.New("--requestheader-client-ca-file needs --requestheader-username-headers, such as X-Remote-User")
	}
	if o.maxLife != 0 && (o.maxLife < minTokenBound || o.maxLife > maxTokenBound) {
		return fmt.Errorf("--service-account-max-token-expiration %s: want an hour to 2^32 seconds, or 0", o.maxLife)
	}
	return o.checkFiles()
}

func (o *accountOptions) checkFiles() error {
	if o.config != "" {
		if err := issuers.Check(issuers.Config{File: o.config, Own: o.issuers}); err != nil {
			return fmt.Errorf("--authentication-config: %w", err)
		}
	}
	if file := o.proxies.ClientCAFile; file != "" {
		if _, err := (&auth.Files{}).Authorities(file); err != nil {
			return fmt.Errorf("--requestheader-client-ca-file: %w", err)
		}
	}
	return nil
}

// An authn is the authenticator of the API server, the issuer that makes the tokens which
// it believes, and other issuers, nil if there are none.
type authn struct {
	authenticator.Request
	own    *accounttoken.Issuer
	others *issuers.Issuers
}

// close ends what other issuers are asked.
func (a *authn) close() {
	if a.others != nil {
		a.others.Close()
	}
}

// frontProxy is nil if there is none.
func (o *accountOptions) frontProxy() *kubeauth.FrontProxy {
	p := &o.proxies
	if p.ClientCAFile == "" {
		return nil
	}
	return &kubeauth.FrontProxy{
		CAFile: p.ClientCAFile, AllowedNames: p.AllowedNames,
		UserHeaders: p.UsernameHeaders, UIDHeaders: p.UIDHeaders, GroupHeaders: p.GroupHeaders, ExtraPrefixes: p.ExtraHeaderPrefixes,
	}
}

// authenticator makes that of the API server.
func (o *accountOptions) authenticator(keys *pki.PKI, files *auth.Files, objects *kubeauth.Objects, names kubeauth.Names, log *slog.Logger) (*authn, error) {
	follow, err := keys.FollowAccountKeys(files)
	if err != nil {
		return nil, err
	}
	k := follow.Get()
	tokens, err := accounttoken.New(accounttoken.Config{
		Issuers: o.issuers, Audiences: o.audiences, MaxLife: o.maxLife, Signer: k.Signer, Public: k.Public,
	})
	if err != nil {
		return nil, fmt.Errorf("tokens of service accounts: %w", err)
	}
	follow.Changed(func() {
		if k := follow.Get(); tokens.Use(k.Signer, k.Public) != nil {
			log.Error("the keys of service account tokens stay as they were: one is of a kind that cannot be used")
		}
	})
	a := &authn{own: tokens}
	c := kubeauth.AuthenticatorConfig{
		ClientCAFile: keys.Path(pki.ClientCA, false), Files: files, Secrets: objects.Secret, Names: names,
		Accounts: tokens.Authenticator(objects.Bound), Audiences: tokens.Audiences(), FrontProxy: o.frontProxy(),
	}
	if o.config != "" {
		a.others, err = issuers.New(issuers.Config{File: o.config, Own: o.issuers, Audiences: tokens.Audiences(), Files: files})
		if err != nil {
			return nil, fmt.Errorf("--authentication-config: %w", err)
		}
		c.Issuers = a.others
	}
	if a.Request, err = kubeauth.NewAuthenticator(c); err != nil && a.others != nil {
		a.others.Close()
	}
	return a, err
}
